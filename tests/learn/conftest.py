"""Real `gemrl` processes on a small dataset. They share compiled programs, which are most of what
a start costs.
"""

import os
import subprocess
import sys
import time

import jax
import pytest

import gemrl
from gemrl.data.recipes import make_dataset
from gemrl.data.tasks import task_named

BC = gemrl.BcConfig(steps=4000, hidden=(8,), batch_size=32, checkpoint_every=1500)


class Processes:
    """Starts commands."""

    def __init__(self, home):
        # Programs in gemrl's own folder, as users have them: there a damaged one is dropped.
        self.variables = os.environ | {"GEMRL_HOME": str(home)}
        self.variables.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.started = []

    def start(self, *words, **options):
        """`gemrl WORDS` in a process of its own."""
        return self.python("-m", "gemrl", *words, **options)

    def python(self, *words, environment=(), **options):
        """Python with some words."""
        process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.variables | dict(environment),
            **options,
        )
        self.started.append(process)
        return process

    def run(self, *words, **options):
        """Exit code, standard output and standard error of `gemrl WORDS`."""
        return self.end(self.start(*words, **options))

    def end(self, process):
        """Exit code, standard output and standard error of a process, once it has ended."""
        out, err = process.communicate(timeout=3600)
        return process.returncode, out, err

    def wait_for(self, happened, *processes):
        """Until something has happened, while the processes run."""
        until = time.monotonic() + 300
        while not happened():
            for process in processes:
                if process.poll() is not None:
                    pytest.fail(f"ended with {process.returncode}: {process.communicate()}")
            if time.monotonic() > until:
                pytest.fail("nothing has happened for five minutes")
            time.sleep(0.002)

    def clean_up(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def compiled_home(tmp_path_factory):
    """A cache folder that processes share, compiled programs with this very process as well."""
    home = tmp_path_factory.mktemp("gemrl-home")
    (home / "compiled").symlink_to(jax.config.jax_compilation_cache_dir)
    return home


@pytest.fixture(scope="session")
def all_processes(compiled_home):
    """For fixtures that live longer than a test."""
    processes = Processes(compiled_home)
    yield processes
    processes.clean_up()


@pytest.fixture
def processes(compiled_home):
    processes = Processes(compiled_home)
    yield processes
    processes.clean_up()


@pytest.fixture(scope="session")
def small_file(tmp_path_factory, compiled_home):
    path = tmp_path_factory.mktemp("data") / "umaze.hdf5"
    make_dataset(task_named("maze2d-umaze-v1"), 2000, 0, path)
    return path


@pytest.fixture(scope="session")
def small_data(small_file):
    return gemrl.load_dataset(small_file)


@pytest.fixture(scope="session")
def bc():
    """Settings of a run that takes a moment."""
    return BC


@pytest.fixture(scope="session")
def bc_words():
    """The same settings as words."""
    return (
        *("--method", "bc", "--steps", "4000", "--hidden", "8"),
        *("--batch-size", "32", "--checkpoint-every", "1500"),
    )


@pytest.fixture(scope="session")
def bc_alone(small_data, tmp_path_factory):
    """A run with these settings that nobody disturbed."""
    out = tmp_path_factory.mktemp("alone") / "run"
    gemrl.train(small_data, BC, out, quiet=True)
    return out


@pytest.fixture(scope="session")
def contents():
    """What a run leaves for good, as bytes."""
    names = ("weights.safetensors", "manifest.json", "metrics.jsonl")
    return lambda run: {name: (run / name).read_bytes() for name in names}
