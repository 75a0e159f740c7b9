"""Fixtures: small real datasets and policies, trained once a session."""

import gc
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import gemrl
from gemrl.data.recipes.maze2d import make_maze2d
from gemrl.data.tasks import task_named

# Compiling is most of what tests cost, so all of them, with pytest's workers and the processes that
# they start, share what is compiled, and later runs find it again: Numba's for these very sources,
# JAX's by what it compiles. A folder that has grown over many versions is begun anew.
KEPT = Path.home() / ".cache" / "gemrl-tests"
MOST_KEPT = 10**9
SOURCES = sorted((Path(gemrl.__file__).parent / "decide" / "fast").glob("*.py"))
DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(KEPT / "numba" / DIGEST))
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(KEPT / "compiled")
if "PYTEST_XDIST_WORKER" not in os.environ:
    if sum(path.stat().st_size for path in (KEPT / "compiled").glob("*")) > MOST_KEPT:
        shutil.rmtree(KEPT / "compiled")
    (KEPT / "compiled").mkdir(parents=True, exist_ok=True)
jax.config.update("jax_compilation_cache_dir", str(KEPT / "compiled"))

# Compiles all of the fast backend, which takes a core for a minute.
COMPILE_FAST = """
import gemrl
from random_networks import random_policy, random_states
policy = random_policy(0, "fast")
for chunk in (None, 4):
    policy.decide(random_states(policy, 1, 0), gemrl.Knobs(n=8), chunk=chunk)
"""
compiling = pytest.StashKey[subprocess.Popen]()


def pytest_sessionstart(session):
    """Compile the fast backend beside the first tests, so that workers that come to it need not
    wait for one another.
    """
    workers = "PYTEST_XDIST_WORKER" not in os.environ and session.config.getoption("-n", None)
    there = any(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*rank_rows*.nbi"))
    if workers and not there and importlib.util.find_spec("numba"):
        session.config.stash[compiling] = subprocess.Popen(
            [sys.executable, "-c", COMPILE_FAST],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent / "decide")},
            stderr=subprocess.DEVNULL,
        )


def pytest_sessionfinish(session):
    if (process := session.config.stash.get(compiling, None)) is not None:
        process.kill()
        process.wait()


UMAZE = "maze2d-umaze-v1"
SMALL = {"hidden": (32, 32), "batch_size": 64, "critics": 3}


# Compiled programs are kept in memory maps, and Linux gives a process 65,530 of them: a worker that
# compiled all that the tests need would die of it.
MOST_MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def _few_programs():
    """Forget compiled programs between modules, before there are too many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    """No test touches the user's cache folder."""
    monkeypatch.setenv("GEMRL_HOME", str(tmp_path / "gemrl-home"))


@pytest.fixture(scope="session")
def maze_arrays():
    """20,000 steps of the Maze2D-umaze recipe, as arrays in D4RL's layout."""
    return make_maze2d(task_named(UMAZE), 20_000, seed=0)


@pytest.fixture(scope="session")
def maze_data(maze_arrays):
    return gemrl.from_arrays(**maze_arrays, task=UMAZE, origin="regenerated")


@pytest.fixture(scope="session")
def run_folder(maze_data, tmp_path_factory):
    """A GEM run on small networks: enough to have components, critics and support that differ."""
    out = tmp_path_factory.mktemp("runs") / "gem"
    config = gemrl.GemConfig(steps=600, pretrain_steps=600, components=4, **SMALL)
    gemrl.train(maze_data, config, out, quiet=True)
    return out


@pytest.fixture(scope="session")
def policy(run_folder):
    return gemrl.load(run_folder)


@pytest.fixture(scope="session")
def observations(maze_data):
    """40 states spread over the data."""
    rows = np.linspace(0, len(maze_data) - 1, 40).astype(int)
    return maze_data.observations[rows]


@pytest.fixture(scope="session")
def test_data_folder():
    """Real data files, which the project does not hold."""
    folder = os.environ.get("GEMRL_TEST_DATA")
    if not folder:
        pytest.skip("GEMRL_TEST_DATA is not set: real data files are not at hand")
    return Path(folder)
