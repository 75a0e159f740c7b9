"""What the documents promise is what the code and the committed rows give."""

import importlib.util
import re
from importlib import import_module
from pathlib import Path

import pytest

import gemrl
from gemrl.data.tasks import TASKS
from gemrl.evaluate.reproduce import REPRODUCTIONS, render
from gemrl.evaluate.reproduce.document import write
from gemrl.evaluate.reproduce.facts import facts_of

ROOT = Path(__file__).parent.parent


def test_the_readmes_lines_run(tmp_path, monkeypatch, maze_arrays):
    import numpy as np

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python\n(.*?)```", text, flags=re.S))
    monkeypatch.chdir(tmp_path)
    np.savez("umaze.npz", **maze_arrays)
    small = "steps=50, pretrain_steps=50, hidden=(16, 16)"
    code = code.replace("steps=50_000", small).replace("episodes=20", "episodes=2")
    code = code.replace(
        'gemrl.load_dataset("maze2d-umaze-v1")',
        'gemrl.load_dataset("umaze.npz", task="maze2d-umaze-v1")',
    )
    assert small in code
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["d"].action.shape == (2,)
    assert len(names["rows"]) == 2
    assert set(names["guarded"].verdict.p) == {"support", "novelty", "spread"}


RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def facts():
    return facts_of(RESULTS)


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_committed_results_are_what_their_rows_and_records_give(name, facts, tmp_path):
    write(REPRODUCTIONS[name].render(facts), tmp_path, name)
    assert (RESULTS / f"{name}.md").read_text() == (tmp_path / f"{name}.md").read_text()


def test_the_committed_exchange_is_what_its_rows_and_records_give(tmp_path):
    folder = ROOT / "docs" / "exchange"
    render("mechanisms", folder, tmp_path)
    assert (folder / "mechanisms.md").read_text() == (tmp_path / "mechanisms.md").read_text()


def loaded(tool):
    spec = importlib.util.spec_from_file_location(tool, ROOT / "tools" / f"{tool}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_that_the_results_page_quotes_are_those_of_the_committed_rows():
    tool, text = loaded("pack_results"), (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    sections = [found[2] for found in tool.QUOTED.findall(text)]
    assert sections == ["Scores", *["Every method"] * 3]
    assert tool.with_tables(text, RESULTS) == text


def test_every_function_in_the_equation_map_exists():
    page = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    places = re.findall(r"`((?:maths|methods|decide)/\w+)\.py: ([\w., ]+)`", page)
    assert len(places) > 20
    for path, names in places:
        module = import_module("gemrl." + path.replace("/", "."))
        for name in names.split(", "):
            found = module
            for part in name.split("."):
                found = getattr(found, part)
            assert callable(found)


def test_every_public_name_can_be_imported_again_and_again():
    for _ in range(2):
        for name in gemrl.__all__:
            assert callable(getattr(gemrl, name))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = gemrl.nonsense


def test_the_page_of_datasets_is_what_its_records_say():
    module = loaded("make_all_data")
    records = module.records()
    assert [record["task"] for record in records] == list(TASKS)
    for record in records:
        task, found = TASKS[record["task"]], record["inspection"]
        assert found["rows"] == task.published_steps
        assert found["origin"] == "regenerated"
        assert found["jumps"] == found["outside_bounds"] == 0
        assert "/" not in found["source"]
    assert module.PAGE.read_text() == module.page(records)
