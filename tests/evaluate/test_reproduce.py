"""Every table and figure of the paper at a small budget: real data, trainings, episodes, files."""

import json
import re
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from gemrl.cli import main
from gemrl.data.tasks import TASKS
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.decide.policy import load
from gemrl.errors import ConfigError, DataError, DivergedError
from gemrl.evaluate import tune
from gemrl.evaluate.cells import here
from gemrl.evaluate.reproduce import (
    REPRODUCTIONS,
    interface,
    paper,
    render,
    reproduce,
    scaling,
    select,
    tuning,
)
from gemrl.evaluate.reproduce.budget import Budget
from gemrl.evaluate.reproduce.document import Document, Table, write
from gemrl.evaluate.reproduce.facts import Facts, facts_of
from gemrl.evaluate.reproduce.lines import change, label, of_suite
from gemrl.evaluate.reproduce.scores import best_step
from gemrl.evaluate.reproduce.study import Study
from gemrl.evaluate.rows import Row, pack_rows, read_rows
from gemrl.evaluate.tune.fqe import FqeConfig
from gemrl.learn.bundle import load_manifest

UMAZE = "maze2d-umaze-v1"
SMALL = Budget(
    tasks=(UMAZE,),
    steps=8,
    seeds=1,
    episodes=2,
    n=8,
    sweep_n=4,
    data_steps=3000,
    settings={
        "hidden": (8, 8),
        "batch_size": 32,
        "pretrain_steps": 8,
        "components": 2,
        "critics": 2,
    },
)
ELSEWHERE = ("nll-gap", "mass-scale", "mechanisms")
"""Reproductions with tests of their own."""
BY_ROWS = [name for name in REPRODUCTIONS if name not in ELSEWHERE]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """All reproductions out of rows, of a study with few settings."""
    few = pytest.MonkeyPatch()
    few.setitem(TASKS, UMAZE, replace(TASKS[UMAZE], horizon=20))
    few.setattr(select, "LAMS", (1.0,))
    few.setattr(select, "WP_ENDS", (0.4, 1.0))
    few.setattr(select, "CONSTANTS", (0.4,))
    few.setattr(scaling, "COUNTS", (0, 1, 8))
    few.setattr("gemrl.evaluate.reproduce.frontier.WEIGHTS", (0.0, 1.0))
    few.setattr(tuning, "WEIGHTS", (0.4, 1.0))
    few.setattr(interface, "WEIGHTS", (0.0, 1.0))
    few.setattr(tuning, "BUDGET", tune.Budget(fits=2, fqe=FqeConfig(updates=5)))
    found = Study(SMALL, tmp_path_factory.mktemp("study"), here)
    reproduce(BY_ROWS, found)
    yield found
    few.undo()


@pytest.mark.parametrize("name", BY_ROWS)
def test_a_reproduction_leaves_markdown_plots_and_a_page_of_its_own(name, study):
    text = (study.out / f"{name}.md").read_text()
    assert text.startswith("# ")
    assert UMAZE in text
    for words in ("Regenerated data", "mujoco", "after 8 updates", "training seeds 0;"):
        assert words in text
    for picture in re.findall(r"\]\((\S+\.png)\)", text):
        assert (study.out / picture).stat().st_size > 2000
    page = (study.out / f"{name}.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "aria-sort" in page


def test_the_documents_are_functions_of_rows_alone(study, tmp_path):
    folder = tmp_path / "copied"
    for file in (study.out / "rows").glob("*.jsonl"):
        pack_rows(folder / "rows" / file.name, read_rows(file))
    shutil.copytree(study.out / "records", folder / "records")
    for name in BY_ROWS:
        render(name, folder, tmp_path / "written")
        again = (tmp_path / "written" / f"{name}.md").read_text()
        assert again == (study.out / f"{name}.md").read_text()


def test_a_second_run_computes_nothing(study):
    before = {p: p.read_bytes() for p in (study.out / "rows").iterdir()}

    def nobody(jobs):
        raise AssertionError(f"asked to run {jobs}")

    reproduce(BY_ROWS, Study(SMALL, study.out, nobody))
    assert {p: p.read_bytes() for p in (study.out / "rows").iterdir()} == before


@pytest.fixture(scope="module")
def without_gem(study, tmp_path_factory):
    """A method of its own, beside GEM's density alone."""
    given = {"td3bc": {"batch_size": 32}}
    budget = replace(SMALL, gem=False, methods=("td3bc",), method_steps=8, method_settings=given)
    found = Study(budget, tmp_path_factory.mktemp("others"), here)
    reproduce(["scores", "interface"], found)
    return found


def test_without_gem_the_density_is_trained_alone_and_is_the_one_of_its_whole_training(
    study, without_gem
):
    runs = without_gem.out / "runs" / UMAZE
    assert sorted(path.name for path in runs.iterdir()) == ["density", "td3bc"]
    alone, whole = (load(s.density(UMAZE, 0)).models.behavior for s in (without_gem, study))
    for ours, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("steps", "wanted"), [(50_000, 10_000), (1_000_000, 100_000)])
def test_without_gem_the_density_has_the_updates_of_the_whole_training(steps, wanted, tmp_path):
    budget = Budget((UMAZE,), steps=steps, methods=("td3bc",), gem=False)
    config = Study(budget, tmp_path).config(UMAZE, 0)
    assert (config.steps, config.behavior_steps) == (0, wanted)


def test_without_gem_a_whole_training_that_is_there_gives_the_density(study):
    other = Study(replace(SMALL, gem=False, methods=("td3bc",)), study.out, here)
    assert other.density(UMAZE, 0) == study.policy(UMAZE, "gem", 0)
    assert [run for _, run, _ in other._wanted(UMAZE)] == [other.policy(UMAZE, "td3bc", 0)]


def test_densities_are_trained_for_the_seeds_that_methods_need(tmp_path):
    heavy = Budget((UMAZE,), seeds=3, methods=("cql",), gem=False)
    assert list(Study(heavy, tmp_path).gem_seeds) == [0]
    both = replace(heavy, methods=("cql", "td3bc"))
    assert list(Study(both, tmp_path).gem_seeds) == [0, 1, 2]
    alone = Study(replace(heavy, methods=("dt",)), tmp_path)
    assert [run.parent.name for _, run, _ in alone._wanted(UMAZE)] == ["dt"]
    later = Study(replace(both, first_seed=1, seeds=2), tmp_path)
    assert list(later.gem_seeds) == [1, 2]
    assert {name: list(seeds) for name, seeds in later.others.items()} == {
        "cql": [1],
        "td3bc": [1, 2],
    }


def test_a_method_without_critics_alone_has_scores_beside_the_datas_and_no_density(tmp_path):
    given = {"dt": {"batch_size": 4, "hidden": (8,), "blocks": 1, "context": 3}}
    budget = replace(SMALL, gem=False, methods=("dt",), method_steps=2, method_settings=given)
    alone = Study(budget, tmp_path, here)
    reproduce(["scores"], alone)
    assert [path.name for path in (tmp_path / "runs" / UMAZE).iterdir()] == ["dt"]
    assert [record["task"] for record in alone.records("data")] == [UMAZE]
    (line,) = (s for s in (tmp_path / "scores.md").read_text().splitlines() if UMAZE in s[:20])
    assert line.count("±") == 1


def test_without_any_training_there_are_no_data_to_tell_of(tmp_path):
    budget = replace(SMALL, gem=False, methods=("td3bc",))
    with pytest.raises(ConfigError, match=f"no training of {UMAZE}"):
        Study(budget, tmp_path, here).dataset(UMAZE)


def test_without_gem_methods_have_rows_of_both_rules_and_gem_has_none(without_gem):
    rows = facts_of(without_gem.out).rows
    assert {row.method for row in rows} == {"td3bc"}
    tested = [row.knobs["n"] for row in rows if row.protocol == "test"]
    assert {0, 4} == set(tested)
    assert "TD3+BC" in (without_gem.out / "scores.md").read_text()
    text = (without_gem.out / "interface.md").read_text()
    assert f"| {UMAZE} | TD3+BC |" in text


def test_a_methods_settings_are_trained_with_recorded_and_told(without_gem):
    config = load_manifest(without_gem.policy(UMAZE, "td3bc", 0))["config"]
    assert (config["batch_size"], config["steps"]) == (32, 8)
    for name in ("scores", "interface"):
        text = (without_gem.out / f"{name}.md").read_text()
        assert f"TD3+BC on {UMAZE} (batch_size 32 instead of 256)" in text
    again = Study(without_gem.budget, without_gem.out, here)
    again.train()
    assert again.records("settings") == without_gem.records("settings")


@pytest.fixture(scope="module")
def with_divergence(study, tmp_path_factory):
    """Two methods, of which one diverges."""
    given = {"sacn": {"learning_rate": 1e38, "critics": 2}}
    methods = ("sacn", "td3bc")
    budget = replace(SMALL, gem=False, methods=methods, method_steps=8, method_settings=given)
    found = Study(budget, tmp_path_factory.mktemp("diverges"), here)
    reproduce(["scores", "interface"], found)
    return found


def test_a_method_that_diverges_is_told_in_the_table_and_ends_no_other(with_divergence):
    (record,) = with_divergence.records("diverged")
    assert (record["task"], record["method"], record["seed"]) == (UMAZE, "sacn", 0)
    assert "not finite at update" in record["why"]
    assert {row.method for row in facts_of(with_divergence.out).rows} == {"td3bc"}
    text = (with_divergence.out / "scores.md").read_text()
    assert "| diverged [" in text
    assert f"Diverged, and so without a policy: SAC-N on {UMAZE}, seed 0 (not finite" in text


def test_what_diverged_is_not_trained_again_unless_with_other_settings(with_divergence):
    log = with_divergence.policy(UMAZE, "sacn", 0) / "train.log"
    before = log.read_bytes()
    again = Study(with_divergence.budget, with_divergence.out, here)
    again.train()
    assert log.read_bytes() == before
    assert again.records("diverged") == with_divergence.records("diverged")
    other = {"sacn": {"learning_rate": 1e37, "critics": 2}}
    budget = replace(with_divergence.budget, method_settings=other)
    for first in (0, 1):
        with pytest.raises(ConfigError, match="trained with other settings"):
            Study(replace(budget, first_seed=first), with_divergence.out, here).train()
    longer = replace(with_divergence.budget, first_seed=1, method_steps=9)
    with pytest.raises(ConfigError, match="trained for 8 updates"):
        Study(longer, with_divergence.out, here).train()


def test_rows_of_a_policy_that_diverged_when_trained_anew_are_not_shown(without_gem, tmp_path):
    folder = tmp_path / "copied"
    shutil.copytree(without_gem.out / "rows", folder / "rows")
    shutil.copytree(without_gem.out / "records", folder / "records")
    assert facts_of(folder).rows
    record = {"task": UMAZE, "method": "td3bc", "seed": 0, "why": "so"}
    (folder / "records" / "diverged.jsonl").write_text(json.dumps(record) + "\n")
    assert facts_of(folder).rows == []
    (folder / "records" / "diverged.jsonl").write_text(json.dumps(record | {"seed": 1}) + "\n")
    assert facts_of(folder).rows
    assert "diverged" not in facts_of(folder).records


def test_gem_that_diverges_is_an_error(tmp_path):
    budget = replace(SMALL, settings=SMALL.settings | {"learning_rate": 1e38})
    with pytest.raises(DivergedError, match="gem, seed 0 failed: training diverged"):
        Study(budget, tmp_path, here).train()


def test_the_interfaces_knobs_are_chosen_on_validation_rows_alone():
    n = 64
    best, *others = interface.settings(UMAZE, n)[2:]
    seen = [replace(ROW, method="awac", protocol="validation", knobs=best.to_json(), score=9.0)]
    seen += [replace(seen[0], knobs=each.to_json(), score=1.0) for each in others]
    tests = [replace(row, protocol="test", score=100.0 - row.score) for row in seen]
    assert interface.chosen([*seen, *tests], UMAZE, "awac", 0, n) is None, "two are missing"
    rest = [replace(seen[0], knobs=k.to_json(), score=1.0) for k in interface.settings(UMAZE, n)]
    rows = [*seen, *tests, *rest[:2]]
    assert interface.chosen(rows, UMAZE, "awac", 0, n) == best
    # Another policy's episodes, in which another setting is best, change nothing.
    theirs = [replace(row, train_seed=1, score=-row.score) for row in rows]
    assert interface.chosen([*rows, *theirs], UMAZE, "awac", 0, n) == best
    assert interface.chosen([*rows, *theirs], UMAZE, "awac", 1, n) not in (None, best)


def test_of_equal_settings_the_first_is_chosen_in_whatever_order_rows_come():
    settings = interface.settings(UMAZE, 64)
    seen = [replace(ROW, method="awac", protocol="validation", knobs=k.to_json()) for k in settings]
    assert interface.chosen(seen[::-1], UMAZE, "awac", 0, 64) == settings[0]
    swept = [replace(ROW, protocol="validation", knobs=k.to_json()) for k in select.sweep(UMAZE, 8)]
    for rows in (swept, swept[::-1]):
        assert select.chosen_knobs(rows, UMAZE, 8) == select.sweep(UMAZE, 8)[0]


def test_other_settings_in_the_same_folder_are_refused(study):
    other = Study(replace(SMALL, steps=9), study.out, here)
    with pytest.raises(ConfigError, match="other settings"):
        other.train()


def test_knobs_are_chosen_on_validation_rows_and_told_on_test_rows(study):
    rows = facts_of(study.out).rows
    knobs = select.chosen_knobs(rows, UMAZE, 8)
    seen = select.sweep_rows(rows, UMAZE)
    assert {row.protocol for row in seen} == {"validation"}
    worse = [replace(r, score=-1e6) if r.protocol == "test" else r for r in rows]
    assert select.chosen_knobs(worse, UMAZE, 8) == knobs
    assert knobs.to_json() in [row.knobs for row in select.pick(rows, task=UMAZE)]


def test_rows_beyond_the_budget_are_not_shown(study, tmp_path):
    folder = tmp_path / "more"
    shutil.copytree(study.out / "records", folder / "records")
    rows = read_rows(study.out / "rows" / f"{UMAZE}.jsonl")
    more = [
        replace(rows[0], train_seed=7),
        replace(rows[0], episode_seed=rows[0].episode_seed + 500),
        replace(rows[0], protocol="validation", knobs=rows[0].knobs | {"n": 99}),
    ]
    pack_rows(folder / "rows" / f"{UMAZE}.jsonl", [*rows, *more])
    assert len(facts_of(folder).rows) == len(facts_of(study.out).rows)
    assert {row.train_seed for row in facts_of(folder).rows} == {0}


@pytest.mark.parametrize("text", ["", "[1]\n", "{}\n", "nonsense\n"])
def test_a_folder_that_does_not_tell_its_budget_is_refused(text, study, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(study.out / "rows", folder / "rows")
    (folder / "records").mkdir()
    (folder / "records" / "study.jsonl").write_text(text)
    with pytest.raises(DataError, match=r"study\.jsonl"):
        facts_of(folder)


def test_policies_on_other_data_are_not_taken_for_the_studys(study):
    other = Study(replace(SMALL, data_steps=4000), study.out, here)
    with pytest.raises(ConfigError, match="other settings or data"):
        other.train()


def test_the_command_renders_committed_rows_without_a_simulator(study, tmp_path, capsys):
    code = main(["reproduce", "scaling", "--rows", str(study.out), "--out", str(tmp_path)])
    assert code == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "scaling.md"),
        str(tmp_path / "scaling.html"),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reproduce", "nothing"], "must be one of scores"),
        (["reproduce", "scores", "--tasks", "chess"], "'chess' is neither a task nor one of"),
        (["reproduce", "scores", "--seeds", "0"], "seeds = 0"),
        (["reproduce", "scores", "--processes", "0"], "processes = 0"),
        (["reproduce", "scores", "--rows", "/nowhere"], "holds no rows"),
        (["reproduce", "scores", "--rows", ".", "--seeds", "9"], "--seeds does not go with --rows"),
        (["reproduce", "scores", "--data-steps", "0"], "data_steps = 0"),
        (["reproduce", "interface", "--methods", "dt"], "'dt', which has no critics"),
        (
            ["reproduce", "scaling", "--no-gem", "--methods", "td3bc"],
            "reproduce scaling without GEM",
        ),
        (["reproduce", "scores", "--no-gem"], "without GEM there must be at least one"),
        (["reproduce", "scores", "--no-gem", "--methods", "iql"], "none of gem, iql, bc"),
        (
            ["reproduce", "scores", "--methods", "dt", "--method-settings", "dt.batch=16"],
            "dt has no 'batch' to set; it has batch_size",
        ),
        (
            ["reproduce", "scores", "--methods", "dt", "--method-settings", "dt.steps=16"],
            "dt has no 'steps' to set",
        ),
        (
            ["reproduce", "scores", "--methods", "dt", "--method-settings", "dt.batch_size=0.5"],
            "batch_size = 0.5: must be a whole number",
        ),
        (
            ["reproduce", "scores", "--methods", "dt", "--method-settings", "cql.samples=4"],
            "method_settings has 'cql', which is not among the methods",
        ),
        (
            ["reproduce", "scores", "--methods", "dt", "--method-settings", "batch_size=16"],
            "must be METHOD.SETTING=VALUE",
        ),
        (
            ["reproduce", "scores", "--methods", "dt", "--method-settings", "dt.batch_size=many"],
            "must be METHOD.SETTING=VALUE",
        ),
        (["reproduce", "scores", "--rows", ".", "--no-gem"], "--no-gem does not go with --rows"),
        (["sweep"], "at least one run folder"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(words, said, capsys):
    assert main(words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


# Rows that were made up, where the answer is known.

ROW = Row(
    task=UMAZE,
    env_id="e",
    simulator="mujoco 1",
    method="gem",
    bundle="b",
    data_origin="regenerated",
    data_fingerprint="f",
    train_seed=0,
    updates=100,
    protocol="test",
    episode_seed=0,
    knobs=Knobs(n=8).to_json(),
    episode_return=0.0,
    score=0.0,
    length=10,
    violation=0.1,
    collapse_dist=0.2,
    support_z=0.3,
    executed_violation=0.1,
    executed_collapse_dist=0.2,
    executed_support_z=0.3,
    lcb_spread=1.0,
)


def rows_of(scores, **changes):
    """A row for each score of each seed."""
    return [
        replace(ROW, train_seed=seed, episode_seed=i, score=float(score), **changes)
        for seed, group in enumerate(scores)
        for i, score in enumerate(group)
    ]


def test_the_label_names_each_simulator_once():
    rows = rows_of([[1]]) + rows_of(
        [[1]], task="hopper-medium-v2", simulator="mujoco 1, gymnasium 2"
    )
    assert "environments on gymnasium 2, mujoco 1; last step" in label(rows, "N = 8")


def test_the_label_says_where_policies_are_of_several_files_of_data():
    rows = rows_of([[1], [2]])
    assert "same file" not in label(rows, "N = 8")
    mixed = [rows[0], replace(rows[1], data_fingerprint="0" * 64)]
    words = f"Not all policies of {rows[0].task} were trained on the same file of data."
    assert label(mixed, "N = 8").endswith(words)


def test_a_change_is_paired_by_seed_and_start():
    one = rows_of([[1, 2], [11, 12]])
    other = rows_of([[4, 3], [15, 16]], violation=0.4)
    found = change(other, one)
    assert found.score.mean == pytest.approx((2 + 4) / 2)
    assert found.audits[0] == pytest.approx(0.3)
    assert found.cells[0] == "+3.0 ± 1.0"


def test_a_suite_weighs_its_tasks_alike_and_its_error_is_between_seeds():
    many = rows_of([[0] * 10, [2] * 10])
    few = rows_of([[10], [20]], task="maze2d-large-v1")
    found = of_suite([many, few])
    assert found.score.mean == pytest.approx((5 + 11) / 2)
    assert found.score.stderr == pytest.approx(3.0)


def test_snapshots_are_told_from_the_last_step():
    early = rows_of([[9]], updates=50)
    late = rows_of([[1]])
    assert select.last_step([*early, *late]) == late
    seen = [replace(row, protocol="validation") for row in (*early, *late)]
    other = rows_of([[99]], protocol="validation", knobs=Knobs(n=8, wp=3.0).to_json())
    assert best_step([*seen, *other], UMAZE, "gem", 0, Knobs(n=8)) == 50
    assert best_step([], UMAZE, "gem", 0, Knobs(n=8)) is None


def test_advice_is_judged_by_the_rows_there_are_and_bad_advice_is_shown_as_such():
    advice = {
        "task": UMAZE,
        "seed": 0,
        "bundle": "b",
        "n": 8,
        "lam": 1.0,
        "reason": "",
        "recommended_wp": 2.0,
        "default_wp": 0.4,
        "fits_agree": 0.9,
        "values": [[0.4, 1.0], [1.0, 2.0], [2.0, 3.0]],
    }
    scores = {0.4: [41, 43], 1.0: [50, 50], 2.0: [19, 21]}
    rows = [
        row
        for wp, found in scores.items()
        for row in rows_of([found], protocol="validation", knobs=Knobs(n=8, wp=wp).to_json())
    ]
    document = tuning.render(Facts(rows, {"tuning": [advice]}))
    (table,) = [part for part in document.parts if isinstance(part, Table)]
    assert table.lines[0][-1] == "would have been bad"
    assert "w_p 2: 30.0" in table.lines[0]
    said = " ".join(part for part in document.parts if isinstance(part, str))
    assert "Mean regret: 30.0 with the advice, 8.0 with the suite's default" in said


def test_the_papers_figures_are_quoted_as_it_gives_them():
    assert paper.quoted("scores", UMAZE, paper.GEM_UNIFIED) == "59.0"
    assert paper.quoted("by_task", UMAZE, "score") == "154.1"
    assert paper.quoted("scores", UMAZE, "FQL") == "–"
    assert len(paper.tasks()) == 18
    assert select.paper_knobs("antmaze-umaze-v2", 64) == Knobs(n=64, lam=3.5, wp=Cosine(0.2, 700))


def test_a_document_escapes_what_it_shows(tmp_path):
    bad = "<script>alert(1)</script>"
    document = Document(bad, [bad, Table(bad, (bad,), ((bad,),))])
    write(document, tmp_path, "bad")
    assert bad not in (tmp_path / "bad.html").read_text()


def test_a_folder_without_rows_is_refused_and_tables_without_rows_say_so(tmp_path):
    with pytest.raises(DataError, match="holds no rows"):
        facts_of(tmp_path)
    empty = Facts([], {})
    for name in BY_ROWS:
        assert "yet" in " ".join(map(str, REPRODUCTIONS[name].render(empty).parts))
