"""Which rows stand for a method on the page, and which are never mixed."""

import math
from dataclasses import replace

import pytest
from made_rows import TASK, made_row

from gemrl.decide.knobs import Cosine, Knobs
from gemrl.evaluate.report.charts import sweeps_of, weight
from gemrl.evaluate.report.gather import Subject
from gemrl.evaluate.report.overview import overview
from gemrl.evaluate.report.settings import at_last_step, headlines, settings_of


def test_the_headline_is_what_validation_chose_even_where_another_tests_better():
    good, better = Knobs(n=64, wp=1.0), Knobs(n=64, wp=2.0)
    rows = [
        made_row(60.0, good, protocol="validation"),
        made_row(40.0, better, protocol="validation"),
        made_row(10.0, good),
        made_row(11.0, replace(good, n=1024)),
        made_row(90.0, better),
    ]
    found = headlines(TASK, rows)["gem"]
    assert found.setting.knobs == replace(good, n=1024)
    assert found.protocol == "chosen on validation seeds"


def test_without_validation_rows_the_papers_knobs_stand_for_a_method():
    suite = Knobs(n=1024, lam=1.0, wp=Cosine(0.4, 300))
    rows = [made_row(90.0, Knobs(n=1024, wp=3.0)), made_row(10.0, suite)]
    found = headlines(TASK, rows)["gem"]
    assert found.setting.knobs == suite
    assert found.protocol == "the paper's for the suite"


def test_a_choice_that_was_not_tested_is_said():
    rows = [
        made_row(60.0, Knobs(n=64, wp=1.0), protocol="validation"),
        made_row(10.0, Knobs(n=64, wp=3.0)),
    ]
    found = headlines(TASK, rows)["gem"]
    assert found.setting.knobs.wp == 3.0
    assert found.protocol == "the only search tested"
    assert "w_p 1) were not tested" in found.note


def test_a_method_stands_as_its_own_paper_executes_it_beside_other_settings():
    """A best of 50 comes before the draw, and GEM's rule is a search that validation saw."""
    drawn = Knobs(n=50, wp=0.0, anchor="none", temperature=0.25)
    guided = Knobs(n=64, wp=0.4)
    rows = [
        made_row(80.0, guided, "diffusionql", protocol="validation"),
        *(
            made_row(score, knobs, "diffusionql")
            for score, knobs in (
                (9.0, replace(drawn, temperature=0.0)),
                (7.0, drawn),
                (8.0, guided),
            )
        ),
    ]
    found = headlines(TASK, rows)["diffusionql"]
    assert found.setting.knobs == drawn
    assert (found.protocol, found.note) == ("as its own paper executes it", "")
    warmer = made_row(6.0, replace(drawn, temperature=0.5), "diffusionql")
    found = headlines(TASK, [*rows, warmer])["diffusionql"]
    assert found.setting.knobs == drawn
    assert found.note == "of several temperatures tested, the lowest"


def test_policies_on_the_way_and_other_masses_are_no_part_of_the_last_step():
    rows = [
        made_row(50.0),
        made_row(10.0, updates=50),
        made_row(20.0, mass_scale=1.5),
        made_row(30.0, method="bc", updates=80),
    ]
    assert [row.score for row in at_last_step(rows)] == [50.0, 30.0]
    assert headlines(TASK, rows)["gem"].setting.score.mean == 50.0


def test_a_setting_is_averaged_over_training_seeds_with_the_error_between_them():
    rows = [made_row(score, seed=seed) for seed, score in ((0, 10.0), (0, 20.0), (1, 35.0))]
    (found,) = settings_of(rows)
    assert found.runs == [15.0, 35.0]
    assert found.score.mean == 25.0
    assert found.score.stderr == pytest.approx(10.0)


def test_an_audit_is_missing_where_a_row_lacks_it_or_candidates_are_too_few():
    (enough,) = settings_of([made_row(knobs=Knobs(n=5, wp=1.0))])
    (few,) = settings_of([made_row(knobs=Knobs(n=4, wp=1.0))])
    (lacking,) = settings_of([made_row(collapse_dist=None), made_row(episode=1)])
    assert enough.estimate("violation").mean == 0.1
    assert enough.estimate("executed_violation").mean == 0.3
    assert few.estimate("violation") is None
    assert few.estimate("collapse_dist").mean == 0.2
    assert lacking.estimate("collapse_dist") is None


def test_time_is_told_only_where_every_row_tells_it():
    timed = made_row(wall_seconds=2.0, decide_seconds=1.5, simulate_seconds=0.25)
    (known,) = settings_of([timed, replace(timed, episode_seed=1)])
    (unknown,) = settings_of([timed, made_row(episode=1)])
    assert known.steps_a_second == pytest.approx(150.0)
    assert known.share_of_time("decide_seconds") == pytest.approx(0.75)
    assert unknown.steps_a_second is None
    assert unknown.share_of_time("decide_seconds") is None


def test_a_sweep_holds_settings_that_differ_in_lam_and_weight_alone():
    rows = [made_row(knobs=Knobs(n=64, lam=lam, wp=wp)) for lam in (0.0, 1.0) for wp in (2.0, 0.1)]
    rows += [made_row(knobs=Knobs(n=8, wp=9.0)), made_row(knobs=Knobs(n=64, wp=9.0, support="raw"))]
    (sweep,) = sweeps_of(settings_of(rows))
    assert [[weight(s) for s in line] for line in sweep] == [[0.1, 2.0], [0.1, 2.0]]


def test_the_constant_one_is_the_schedule_that_ends_at_one():
    rows = [made_row(knobs=Knobs(n=64, wp=wp)) for wp in (1.0, Cosine(0.4, 300), Cosine(2.0, 300))]
    (sweep,) = sweeps_of(settings_of(rows))
    assert [[weight(s) for s in line] for line in sweep] == [[0.4, 1.0, 2.0]]


def subject(task, scores):
    """A task with a headline of each method, from its seeds' scores."""
    rows = [
        made_row(score, method=method, seed=seed, task=task)
        for method, seeds in scores.items()
        for seed, score in enumerate(seeds)
    ]
    return Subject(task, "f" * 64, rows=rows)


def test_the_overview_compares_gem_with_each_baseline_over_the_tasks_that_all_have():
    subjects = [
        subject("a", {"gem": [50.0, 60.0], "iql": [40.0, 55.0], "bc": [0.0, 10.0]}),
        subject("b", {"gem": [10.0, 20.0], "iql": [40.0, 50.0], "bc": [0.0, 5.0]}),
        subject("c", {"gem": [99.0, 99.0]}),
    ]
    found = overview(subjects)
    assert found is not None
    assert found["tasks"] == 2
    assert found["left_out"] == 1
    methods, means, middles, better, runs = zip(*found["over_tasks"].lines, strict=True)
    assert [cell.text for cell in methods] == ["BC", "IQL", "GEM"]
    assert [cell.value for cell in means] == pytest.approx([3.75, 46.25, 35.0])
    # Mann and Whitney: 3 of 4 pairs in the first task, none in the second.
    assert [cell.value for cell in better] == [1.0, 0.375, None]
    assert [cell.value for cell in runs] == [4, 4, 4]
    assert "[" in middles[2].text
    assert "P(GEM > IQL)" in found["scores"].headings
    assert [line[0].text for line in found["scores"].lines] == ["a", "b", "c"]
    assert found["profile"].alt.startswith("Performance profile")


def test_one_seed_gives_no_interval():
    found = overview([subject("a", {"gem": [50.0], "iql": [40.0]})])
    assert found is not None
    gem = found["over_tasks"].lines[-1]
    assert gem[1].text == "50.0"
    assert not math.isnan(gem[1].value)


def test_there_is_no_overview_of_validation_rows_alone():
    rows = [made_row(protocol="validation")]
    assert overview([Subject(TASK, "f" * 64, rows=rows)]) is None
