"""Scores under other masses, from cells to the page."""

from gemrl.decide.knobs import Knobs
from gemrl.evaluate.reproduce import mass_scale
from gemrl.evaluate.reproduce.budget import Budget
from gemrl.evaluate.reproduce.document import Plot, Table, write
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.select import BASELINE, paper_knobs
from gemrl.evaluate.reproduce.study import Plan
from gemrl.evaluate.rows import Row

UMAZE = "maze2d-umaze-v1"
MEDIUM = "maze2d-medium-v1"


def row(task, method, scale, score, knobs, seed=0):
    return Row(
        task=task,
        env_id="e",
        simulator="mujoco",
        method=method,
        bundle=f"{method}{seed}",
        data_origin="regenerated",
        data_fingerprint="f",
        train_seed=seed,
        updates=10,
        protocol="test",
        episode_seed=1_000_000,
        knobs=knobs.to_json(),
        episode_return=0.0,
        score=score,
        length=300,
        violation=0.0,
        collapse_dist=0.1,
        support_z=1.0,
        executed_violation=0.0,
        executed_collapse_dist=0.1,
        executed_support_z=1.0,
        lcb_spread=0.2,
        mass_scale=scale,
        wall_seconds=1.0,
    )


def facts(rows):
    budget = Budget((UMAZE,), knobs="paper", sweep_n=8)
    return Facts(rows, {"study": [{"n": budget.n, "sweep_n": 8, "knobs": "paper"}]})


def all_rows(task):
    """GEM loses 10 a step from the nominal scale, IQL and BC stay where they are."""
    rows = []
    for i, scale in enumerate(mass_scale.SCALES):
        for seed in (0, 1):
            gem = 60.0 - 10 * abs(i - 2) + 2 * seed
            rows.append(row(task, "gem", scale, gem, paper_knobs(task, 8), seed))
            rows.append(row(task, "iql", scale, 45.0, BASELINE, seed))
            rows.append(row(task, "bc", scale, 5.0, BASELINE, seed))
    return rows


def test_the_table_has_every_scale_by_suite_and_task(tmp_path):
    document = mass_scale.render(facts(all_rows(UMAZE) + all_rows(MEDIUM)))
    scores, audits = (p for p in document.parts if isinstance(p, Table))
    assert [line[0] for line in scores.lines[::3]] == ["**maze2d**", UMAZE, MEDIUM]
    assert scores.lines[3][1:] == [
        "GEM",
        *(f"{mean}.0 ± 1.0" for mean in (41, 51, 61, 51, 41, 31)),
    ]
    assert len(audits.lines) == 3 * 3 * 6
    said = [p for p in document.parts if isinstance(p, str)][-1]
    assert "GEM 61.0 → 31.0 (× 2)" in said
    assert "highest mean at 3 of 6 scales" in said
    assert sum(isinstance(p, Plot) for p in document.parts) == 1
    assert all(path.exists() for path in write(document, tmp_path, "mass-scale"))


def test_a_task_without_all_scales_or_with_other_knobs_is_left_out():
    missing = [r for r in all_rows(UMAZE) if (r.method, r.mass_scale) != ("iql", 2.0)]
    other = [
        row(MEDIUM, "gem", scale, 1.0, Knobs(n=8, lam=0.5, wp=3.0)) for scale in mass_scale.SCALES
    ]
    for rows in (missing, other, []):
        document = mass_scale.render(facts(rows))
        assert document.parts == ["No task has rows for every mass scale yet."]


def test_every_method_meets_every_scale_on_test_seeds(tmp_path):
    budget = Budget((UMAZE,), seeds=2, episodes=5, sweep_n=2, knobs="paper")
    plan = Plan(budget, tmp_path)
    mass_scale.collect(plan)
    assert len(plan.cells) == 3 * 6 * 2
    for cell in plan.cells:
        assert (cell.protocol, cell.episodes, cell.task) == ("test", 5, UMAZE)
        is_gem = cell.audited_by is None
        assert cell.knobs == (paper_knobs(UMAZE, 2) if is_gem else BASELINE)
    assert {cell.mass_scale for cell in plan.cells} == set(mass_scale.SCALES)


def test_knobs_that_are_to_be_chosen_need_their_sweep(tmp_path):
    plan = Plan(Budget((UMAZE,), seeds=1), tmp_path)
    mass_scale.collect(plan)
    assert {cell.protocol for cell in plan.cells} == {"validation", "test"}
