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


def test_a_second_start_compiles_nothing_and_gives_the_same_weights(count, tmp_path):
    home = tmp_path / "home"
    first = count("first", GEMRL_HOME=str(home))
    assert first["folder"] == str(home / "compiled")
    assert first["cache_misses"] > 0
    kept = {path.name: path.read_bytes() for path in (home / "compiled").iterdir()}
    assert len(kept) >= first["cache_misses"]
    second = count("second", GEMRL_HOME=str(home))
    assert second["cache_misses"] == 0
    assert second["cache_hits"] >= first["cache_misses"]
    assert kept == {path.name: path.read_bytes() for path in (home / "compiled").iterdir()}
    weights = [(tmp_path / run / "weights.safetensors").read_bytes() for run in ("first", "second")]
    assert weights[0] == weights[1]


def test_a_folder_that_the_user_chose_is_used_instead(count, compiled_home, tmp_path):
    mine = str(compiled_home / "compiled")  # Where other tests have left programs.
    environment = {"GEMRL_HOME": str(tmp_path / "home"), "JAX_COMPILATION_CACHE_DIR": mine}
    assert count("run", **environment)["folder"] == mine
    assert not (tmp_path / "home" / "compiled").exists()


@pytest.mark.long
def test_programs_that_were_cut_short_are_compiled_anew_without_a_word(count, tmp_path):
    home = tmp_path / "home"
    count("first", GEMRL_HOME=str(home))
    for path in (home / "compiled").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    count("second", GEMRL_HOME=str(home))
    weights = [(tmp_path / run / "weights.safetensors").read_bytes() for run in ("first", "second")]
    assert weights[0] == weights[1]
