"""The NLL gap as bundles know it, beside the paper's two tables."""

import numpy as np
import pytest

from gemrl.errors import DataError
from gemrl.evaluate.reproduce import nll_gap
from gemrl.evaluate.reproduce.budget import Budget
from gemrl.evaluate.reproduce.document import Plot, Table, write
from gemrl.evaluate.reproduce.facts import Facts, facts_of
from gemrl.evaluate.reproduce.study import Study

UMAZE = "maze2d-umaze-v1"


@pytest.fixture(scope="module")
def records(policy, maze_data):
    return nll_gap.measured(policy, maze_data, UMAZE, 0)


def test_mean_and_median_are_those_of_the_manifest(policy, records):
    calibration = policy.bundle.manifest["calibration"]
    assert {(r["model"], r["part"]) for r in records} == {
        (model, part) for model in ("actor", "behavior") for part in ("training", "held_out")
    }
    for record in records:
        known = calibration[record["model"]][record["part"]]
        for name in ("gap", "gap_median", "nll", "rows"):
            assert record[name] == known[name]
        assert (record["log_std_min"], record["updates"]) == (-3.0, 600)


def test_the_spread_is_that_over_the_same_rows(policy, maze_data, records):
    rows = maze_data.select(policy.bundle.split(maze_data)[1])
    mixture = policy.actor(rows.observations)
    heaviest = np.asarray(mixture.log_weights).argmax(axis=1)
    at = np.arange(len(rows))
    mean, std = (np.asarray(x)[at, heaviest] for x in (mixture.means, mixture.stds))
    z = (rows.actions - mean) / std
    top = -0.5 * (z**2 + np.log(2 * np.pi) + 2 * np.log(std)).sum(axis=1)
    gap = np.asarray(mixture.log_prob(rows.actions)) - top
    found = next(r for r in records if (r["model"], r["part"]) == ("actor", "held_out"))
    assert found["gap_std"] == pytest.approx(gap.std(), rel=1e-3)
    assert found["gap"] == pytest.approx(gap.mean(), rel=1e-3)


def test_what_is_recorded_is_not_measured_again(run_folder, records, tmp_path):
    study = Study(Budget((UMAZE,), seeds=1), tmp_path)
    study.begin()
    place = study.policy(UMAZE, "gem", 0)
    place.parent.mkdir(parents=True)
    place.symlink_to(run_folder)
    study.record(nll_gap.NAME, records)
    nll_gap.collect(study)
    assert facts_of(tmp_path).records[nll_gap.NAME] == records


def test_records_of_another_policy_do_not_stand_for_this_one(run_folder, records, tmp_path):
    study = Study(Budget((UMAZE,), seeds=1), tmp_path)
    study.begin()
    place = study.policy(UMAZE, "gem", 0)
    place.parent.mkdir(parents=True)
    place.symlink_to(run_folder)
    study.record(nll_gap.NAME, [record | {"bundle": "another"} for record in records])
    # It is measured anew, for which this policy lacks its data: arrays that no file holds.
    with pytest.raises(DataError):
        nll_gap.collect(study)


def records_of(task, gaps, model="actor"):
    about = {"updates": 100, "data_origin": "regenerated", "components": 8, "log_std_min": -3.0}
    return [
        {"task": task, "seed": seed, "bundle": str(seed), "model": name, "part": part, "rows": 9}
        | about
        | {"nll": 0.1, "gap": gap if name == model else 1.0, "gap_median": -0.5, "gap_std": 4.0}
        | {"lowest_log_std": -3.0}
        for seed, gap in enumerate(gaps)
        for name in ("actor", "behavior")
        for part in ("training", "held_out")
    ]


def test_the_table_shows_ours_beside_both_of_the_papers(tmp_path):
    records = records_of(UMAZE, (10.0, 14.0)) + records_of("hopper-expert-v2", (2.0, 2.0))
    document = nll_gap.render(Facts([], {"nll-gap": records}))
    actor, behavior, quoted = (p for p in document.parts if isinstance(p, Table))
    line = actor.lines[0]
    assert line[:5] == [UMAZE, "training", "12.00 ± 2.00", "-0.50 ± 0.00", "4.00 ± 0.00"]
    assert line[-2:] == ["168.29 ± 7.71", "2.04 ± 0.01"]
    assert len(behavior.lines) == 4
    # Expert tasks are in the first of the paper's tables only.
    expert = next(line for line in actor.lines if line[0] == "hopper-expert-v2")
    assert expert[-2:] == ["7.48 ± 1.01", "–"]
    assert len(quoted.lines) == 21
    text = "\n".join(p for p in document.parts if isinstance(p, str))
    assert "floor of ln σ -3" in text
    assert "positive in 2 of 2 tasks by its mean and in 0 by its median" in text
    # As a ratio 12 is nearer to 2.04 than to 168.
    assert "appendix A 0, paper, appendix B 1" in text
    assert all(path.exists() for path in write(document, tmp_path, "nll-gap"))


def test_a_gap_below_zero_has_no_bar_and_does_not_fail():
    document = nll_gap.render(Facts([], {"nll-gap": records_of(UMAZE, (-3.0,))}))
    assert sum(isinstance(p, Plot) for p in document.parts) == 1
    assert nll_gap.render(Facts([], {})).parts == ["Nothing has been measured yet."]
