"""Compiled programs are kept: a second start compiles nothing; a user's own folder is honoured."""

import json

import pytest

# Trains, and tells how often JAX found a program in its cache, how often it did not, and where it
# looked.
COUNT = """
import collections, json, sys
import jax
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event]))
from gemrl.cli import main
code = main(sys.argv[1:])
prefix = "/jax/compilation_cache/"
counts = {name: seen[prefix + name] for name in ("cache_hits", "cache_misses")}
print(json.dumps(counts | {"folder": jax.config.jax_compilation_cache_dir}))
sys.exit(code)
"""


@pytest.fixture
def count(processes, small_file, tmp_path):
    def call(out, **environment):
        words = ("train", small_file, "--method", "bc", "--steps", "40", "--hidden", "8")
        words = (*words, "--batch-size", "32", "--out", tmp_path / out)
        process = processes.python("-c", COUNT, *words, environment=environment)
        code, printed, said = processes.end(process)
        assert code == 0, said
        return json.loads(printed.splitlines()[-1])

    return call


def kept(home):
    return {path.name: path.read_bytes() for path in (home / "compiled").iterdir()}


def weights(folder, *runs):
    return [(folder / run / "weights.safetensors").read_bytes() for run in runs]


def test_a_second_start_compiles_nothing_and_gives_the_same_weights(count, tmp_path):
    home = tmp_path / "home"
    first = count("first", GEMRL_HOME=str(home))
    assert first["folder"] == str(home / "compiled")
    assert first["cache_hits"] == 0
    before = kept(home)
    assert len(before) == first["cache_misses"] > 10
    second = count("second", GEMRL_HOME=str(home))
    assert (second["cache_hits"], second["cache_misses"]) == (first["cache_misses"], 0)
    assert kept(home) == before
    one, other = weights(tmp_path, "first", "second")
    assert one == other


def test_a_folder_that_the_user_chose_is_used_instead(count, tmp_path):
    mine = str(tmp_path / "mine")
    environment = {"GEMRL_HOME": str(tmp_path / "home"), "JAX_COMPILATION_CACHE_DIR": mine}
    assert count("run", **environment)["folder"] == mine
    assert not (tmp_path / "home" / "compiled").exists()


@pytest.mark.long
def test_programs_that_cannot_be_kept_cost_neither_the_run_nor_those_that_were(
    processes, count, small_file, tmp_path
):
    home = tmp_path / "home"
    count("first", GEMRL_HOME=str(home))
    before = kept(home)
    program = COUNT.replace(
        "code =", "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\ncode ="
    )
    words = ("train", small_file, "--method", "bc", "--steps", "40", "--hidden", "9")
    process = processes.python(
        *("-c", program, *words, "--out", tmp_path / "run"), environment={"GEMRL_HOME": str(home)}
    )
    code, printed, said = processes.end(process)
    assert code == 0, said
    assert json.loads(printed.splitlines()[-1])["cache_misses"] > 0
    assert "Warning" not in said
    assert before.items() <= kept(home).items()
