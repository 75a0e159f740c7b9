"""Backends are chosen by name, refused with a reason, and give the same through either door."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from random_networks import random_policy, random_states, require_backend

import gemrl
from gemrl.decide.backend import Shape, Weights, backend_for, seed_pairs
from gemrl.errors import KnobError
from gemrl.maths.mixture import row_keys

KNOBS = gemrl.Knobs(n=12)


def test_a_record_names_the_backend_and_the_policy(backend):
    policy = random_policy(1, backend)
    record = policy.decide(random_states(policy, 2, 0), KNOBS)
    assert record.backend == policy.backend.name == backend
    assert record.digest == policy.digest
    assert record.verdict is None


@pytest.mark.parametrize("name", ["numba", "JAX", "", None, 1])
def test_an_unknown_backend_is_refused_with_those_there_are(name):
    with pytest.raises(KnobError, match=r"backend = .*auto, jax, fast"):
        random_policy(1, name)


def test_the_variable_speaks_for_auto_and_for_nothing_else(monkeypatch):
    monkeypatch.setenv("GEMRL_BACKEND", "jax")
    assert random_policy(1, "auto").backend.name == "jax"
    monkeypatch.setenv("GEMRL_BACKEND", "fast")
    assert random_policy(1, "jax").backend.name == "jax"
    monkeypatch.setenv("GEMRL_BACKEND", "quick")
    with pytest.raises(KnobError, match=r"GEMRL_BACKEND = 'quick'.*auto, jax, fast"):
        random_policy(1, "auto")


def test_without_numba_auto_is_jax_and_fast_says_what_to_install(monkeypatch):
    monkeypatch.delenv("GEMRL_BACKEND", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert random_policy(1, "auto").backend.name == "jax"
    with pytest.raises(KnobError, match=r"backend = 'fast'.*pip install 'gemrl\[fast\]'"):
        random_policy(1, "fast")


def test_auto_serves_a_policy_that_only_jax_knows(maze_data, tmp_path, monkeypatch):
    monkeypatch.delenv("GEMRL_BACKEND", raising=False)
    config = gemrl.IqlConfig(steps=0, hidden=(16,), batch_size=32, critics=2)
    policy = gemrl.train(maze_data, config, tmp_path / "iql", quiet=True)
    assert gemrl.load(tmp_path / "iql").backend.name == policy.backend.name == "jax"
    with pytest.raises(KnobError, match="backend = 'fast'"):
        gemrl.load(tmp_path / "iql", backend="fast")


def test_importing_gemrl_and_its_policy_imports_no_numba():
    code = "import sys, gemrl; gemrl.Policy; gemrl.load; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_seeds_are_pairs_of_a_seed_and_a_rows_number():
    np.testing.assert_array_equal(seed_pairs(np.uint32(7).reshape(()), 3), [[7, 0], [7, 1], [7, 2]])
    np.testing.assert_array_equal(seed_pairs(np.uint32([4, 5]), 2), [[4, 0], [5, 0]])
    own = np.uint32([[4, 9], [5, 1]])
    np.testing.assert_array_equal(seed_pairs(own, 2), own)


def test_the_keys_of_states_are_those_of_mixtures():
    policy = random_policy(1)
    states = random_states(policy, 3, 0).astype(np.float32)
    begun = policy.backend.begin(states, np.uint32(11).reshape(()))
    np.testing.assert_array_equal(begun.key, jax.random.key_data(row_keys(11, 3)))


def test_one_shot_equals_begin_score_and_rank(backend):
    policy = random_policy(2, backend)
    doors = backend_for(policy.models, policy.spec, backend)
    obs = random_states(policy, 5, 0).astype(np.float32)
    seeds = np.uint32([1, 2, 3, 4, 5])
    weights = Weights(*(np.full(5, x, np.float32) for x in (0.5, 1.0, 0.0)))
    shape = Shape.of(gemrl.Knobs(n=12, k_smooth=3, value="zscore"))
    whole = doors.decide(obs, seeds, weights, shape)
    begun = doors.begin(obs, seeds)
    scored = doors.score(begun, shape, 0, shape.candidates)
    ranked = doors.rank(begun, scored, weights, shape)
    assert set(whole) == set(ranked)
    np.testing.assert_array_equal(scored.candidates, whole["candidates"])
    for name, values in whole.items():
        np.testing.assert_allclose(ranked[name], values, rtol=1e-5, atol=1e-5, err_msg=name)
        assert np.asarray(values).dtype.kind == np.asarray(ranked[name]).dtype.kind, name


TURNS = """
import sys, time
from pathlib import Path
from slow_to_compile import Entry, added

Path(sys.argv[1], "ready-" + sys.argv[2]).touch()
latest = time.monotonic() + 120
while len(list(Path(sys.argv[1]).glob("ready-*"))) < 2 and time.monotonic() < latest:
    time.sleep(0.001)
assert added(1.0) == added(1.0) == 32.0
print(sum(added.compiled.stats.cache_misses.values()))
"""
MODULE = """
from gemrl.decide.fast.cache import Entry

@Entry
def added(x):
    for _ in range(31):
        x += 1
    return x
"""


def test_of_processes_that_start_together_one_compiles_and_the_others_find_it(tmp_path):
    require_backend("fast")
    (tmp_path / "slow_to_compile.py").write_text(MODULE)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", TURNS, str(tmp_path), str(number)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    assert sorted(process.communicate(timeout=240)[0] for process in both) == ["0\n", "1\n"]


FORKED = """
import os, time
from gemrl.decide.fast import cache

pid = 0
class Compiled:
    def __call__(self, x):
        global pid
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        return x

added.compiled = Compiled()
added(1.0)
with cache._turn(added._lock):
    print("free")
os.kill(pid, 9)
"""


def test_a_child_that_was_forked_meanwhile_keeps_nobody_waiting(tmp_path):
    require_backend("fast")
    (tmp_path / "slow_to_compile.py").write_text(MODULE)
    process = subprocess.run(
        [sys.executable, "-c", "from slow_to_compile import added\n" + FORKED],
        cwd=tmp_path,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kept")},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert process.stdout == "free\n", process.stderr


def test_the_executed_action_of_an_audited_policy_keeps_its_backend():
    policy = random_policy(1, "jax")
    assert policy.audited_by(policy).backend.name == "jax"
