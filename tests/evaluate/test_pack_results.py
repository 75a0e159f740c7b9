"""tools/pack_results.py: what a study brings, and what stays."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_rows import TASK, made_row

from gemrl.decide.knobs import Knobs
from gemrl.evaluate.rows import pack_rows, read_rows

TOOL = Path(__file__).resolve().parents[2] / "tools" / "pack_results.py"
BUDGET = {
    "steps": 100,
    "n": 1024,
    "sweep_n": 64,
    "knobs": "chosen",
    "data_steps": None,
    "settings": {},
}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("pack_results", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cell_is_replaced_and_other_cells_of_its_method_stay(tool):
    kept = made_row(1.0, Knobs(n=8), "td3bc")
    old = made_row(2.0, Knobs(n=0, wp=0.0), "td3bc")
    heavier = replace(old, mass_scale=2.0)
    new = replace(old, score=9.0)
    assert tool.merged_rows([kept, old, heavier], [new]) == [kept, heavier, new]


def test_no_row_of_a_policy_stays_that_was_trained_anew(tool):
    old = [made_row(1.0, Knobs(n=8), "td3bc", seed) for seed in (0, 1)]
    other = made_row(1.0, Knobs(n=8), "awac")
    new = replace(made_row(9.0, Knobs(n=0, wp=0.0), "td3bc"), bundle="after")
    assert tool.merged_rows([*old, other], [new]) == [old[1], other, new]


def test_records_of_other_tasks_and_experiments_stay(tool):
    old = [
        {"experiment": "a", "value": 1},
        {"experiment": "b", "value": 2},
        {"experiment": "c", "task": "x", "value": 3},
        {"experiment": "c", "task": "y", "value": 4},
    ]
    new = [{"experiment": "a", "value": 10}, {"experiment": "c", "task": "x", "value": 30}]
    assert tool.merged_records(old, new, []) == [old[1], old[3], *new]
    assert tool.merged_records(old, new, ["y"]) == [*old[1:], new[0]]


def folder(path, rows, **budget):
    about = {"seeds": 3, "episodes": 50} | BUDGET | budget
    (path / "records").mkdir(parents=True)
    (path / "records" / "study.jsonl").write_text(json.dumps(about) + "\n")
    pack_rows(path / "rows" / f"{TASK}.jsonl", rows)
    return path


def test_packing_joins_a_methods_rows_and_keeps_the_budget(tool, tmp_path):
    results = folder(tmp_path / "results", [made_row(1.0, method="gem")])
    study = folder(tmp_path / "study", [made_row(2.0, method="awac")], episodes=20)
    tool.pack(study, results, [])
    rows = read_rows(results / "rows" / f"{TASK}.jsonl")
    assert [(row.method, row.score) for row in rows] == [("gem", 1.0), ("awac", 2.0)]
    assert json.loads((results / "records" / "study.jsonl").read_text())["episodes"] == 50


@pytest.mark.parametrize(
    "other", [{"steps": 30}, {"sweep_n": 32}, {"episodes": 100}, {"data_steps": 1000}]
)
def test_a_study_of_another_budget_is_refused_and_nothing_is_written(tool, tmp_path, other):
    results = folder(tmp_path / "results", [made_row(1.0)])
    study = folder(tmp_path / "study", [made_row(2.0, method="awac")], **other)
    with pytest.raises(SystemExit, match=next(iter(other))):
        tool.pack(study, results, [])
    assert len(read_rows(results / "rows" / f"{TASK}.jsonl")) == 1


def lost(*seeds, task=TASK):
    return [{"task": task, "method": "cql", "seed": seed, "why": "so"} for seed in seeds]


@pytest.fixture
def study(tmp_path):
    def make(name, rows, records, **settings):
        place = folder(tmp_path / name, rows, seeds=3, episodes=10) / "records"
        given = {"task": TASK, "method": "cql", "settings": settings}
        (place / "settings.jsonl").write_text(json.dumps(given) + "\n")
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (place / "diverged.jsonl").write_text(lines)
        return tmp_path / name

    return make


def cql(*scores):
    return [made_row(score, Knobs(n=0, wp=0.0), "cql", seed) for seed, score in enumerate(scores)]


def test_of_rows_and_divergences_of_a_training_the_newer_stay(tool, study):
    rows = cql(1.0, 1.0)
    results = study("results", rows, lost(2))
    later = cql(0.0, 0.0, 2.0)[2:]
    tool.pack(study("study", later, lost(1)), results, [])
    assert read_rows(results / "rows" / f"{TASK}.jsonl") == [rows[0], *later]
    text = (results / "records" / "diverged.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == lost(1)


def test_rows_of_a_training_that_diverged_stay_nowhere_even_if_they_are_all(tool, study):
    results = study("results", cql(1.0), [])
    tool.pack(study("study", cql(3.0), lost(0)), results, [])
    assert not (results / "rows" / f"{TASK}.jsonl").exists()
    assert json.loads((results / "records" / "diverged.jsonl").read_text()) == lost(0)[0]


def test_divergences_on_tasks_that_were_not_asked_for_stay(tool, study):
    results = study("results", [], lost(0))
    tool.pack(study("study", cql(3.0), []), results, ["another-task"])
    assert json.loads((results / "records" / "diverged.jsonl").read_text()) == lost(0)[0]
    assert not read_rows(results / "rows" / f"{TASK}.jsonl")


@pytest.mark.parametrize(("rows", "gone"), [(cql(1.0), []), ([], lost(0))])
def test_a_seed_with_other_settings_than_those_that_stay_is_refused(tool, study, rows, gone):
    results = study("results", rows, gone)
    other = study("study", cql(0.0, 2.0)[1:], [], samples=4)
    with pytest.raises(SystemExit, match=r"cql on .* with other settings than seeds 0 in"):
        tool.pack(other, results, [])
    assert read_rows(results / "rows" / f"{TASK}.jsonl") == rows
    tool.pack(study("whole", cql(5.0, 2.0), [], samples=4), results, [])
    assert len(read_rows(results / "rows" / f"{TASK}.jsonl")) == 2


def test_a_seed_that_was_trained_for_longer_than_those_that_stay_is_refused(tool, study):
    results = study("results", cql(1.0), [])
    longer = [replace(row, updates=500) for row in cql(0.0, 2.0)]
    with pytest.raises(SystemExit, match=r"cql on .*updates: 100 of seed 0, 500 of seed 1"):
        tool.pack(study("study", longer[1:], []), results, [])
    assert read_rows(results / "rows" / f"{TASK}.jsonl") == cql(1.0)
    tool.pack(study("whole", [replace(row, bundle="anew") for row in longer], []), results, [])
    rows = read_rows(results / "rows" / f"{TASK}.jsonl")
    assert [row.train_seed for row in rows if row.updates == 500] == [0, 1]


def test_a_folder_that_is_no_study_is_named(tool, tmp_path):
    with pytest.raises(SystemExit, match="nowhere is no study"):
        tool.pack(tmp_path / "nowhere", tmp_path, [])


PAGE = """# Scores

**Means**

| a |
| 1 |

## Others

**Means**

| b |
| 2 |
"""


def test_quoted_tables_become_those_of_their_page_and_section(tool, tmp_path):
    (tmp_path / "scores.md").write_text(PAGE)
    before = "Words.\n\n<!-- scores.md, Others: Means -->\n\n| old |\n| 0 |\n\n| mine |\n"
    after = "Words.\n\n<!-- scores.md, Others: Means -->\n\n| b |\n| 2 |\n\n| mine |\n"
    assert tool.with_tables(before, tmp_path) == after


def test_a_mark_without_its_table_is_refused(tool, tmp_path):
    (tmp_path / "scores.md").write_text(PAGE)
    mark = "<!-- scores.md, Others: Means -->\n"
    text = f"{mark}\n| old |\n\n{mark}Words.\n"
    with pytest.raises(SystemExit, match="2 marks of quoted tables, and 1 "):
        tool.with_tables(text, tmp_path)


def test_a_table_that_a_page_no_longer_has_is_named(tool, tmp_path):
    (tmp_path / "scores.md").write_text(PAGE)
    text = "<!-- scores.md, Others: Medians -->\n\n| old |\n"
    with pytest.raises(SystemExit, match="no table 'Medians' in a section 'Others'"):
        tool.with_tables(text, tmp_path)
