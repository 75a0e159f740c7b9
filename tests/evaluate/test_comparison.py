"""The table of every method beside GEM, behaviour cloning and the data."""

from dataclasses import replace

import numpy as np
import pytest
from made_rows import NONE, TASK, made_row

from gemrl import from_arrays
from gemrl.decide.knobs import Knobs
from gemrl.errors import DataError
from gemrl.evaluate.choose import published_knobs
from gemrl.evaluate.reproduce import comparison, interface
from gemrl.evaluate.reproduce.document import Table
from gemrl.evaluate.reproduce.facts import Facts
from gemrl.evaluate.reproduce.select import sweep

OTHER = "maze2d-large-v1"
CHOSEN = sweep(TASK, 1024)[3]
RECORDS = {"data": [{"task": TASK, "episodes": 9, "mean": 20.0, "best": 90.0}]}


def rows_of(method, *scores, knobs=None):
    """A test row of each training seed."""
    knobs = published_knobs(method) if knobs is None else knobs
    return [made_row(score, knobs, method, seed) for seed, score in enumerate(scores)]


ROWS = [
    made_row(80.0, CHOSEN, protocol="validation"),
    made_row(10.0, sweep(TASK, 1024)[0], protocol="validation"),
    *rows_of("gem", 70.0, 90.0, knobs=CHOSEN),
    *rows_of("gem", 1.0, 1.0, knobs=sweep(TASK, 1024)[0]),
    *rows_of("iql", 40.0, 44.0, knobs=NONE),
    *rows_of("bc", 10.0, 12.0, knobs=NONE),
    *rows_of("td3bc", 15.0, 17.0),
    *rows_of("cql", 9.0),
    *rows_of("idql", 30.0, 34.0),
    *rows_of("idql", 99.0, 99.0, knobs=Knobs(n=1, wp=0.0)),
]


@pytest.fixture(scope="module")
def parts():
    return comparison.render(Facts(ROWS, RECORDS))


@pytest.fixture(scope="module")
def table(parts):
    return next(part for part in parts if isinstance(part, Table))


def test_each_method_stands_as_its_own_paper_deploys_it_and_gem_as_validation_chose(table):
    (line,) = table.lines
    found = dict(zip(table.headings, line, strict=True))
    assert found["data"] == "20.0"
    means = {"BC": "11.0", "IQL": "42.0", "TD3+BC": "16.0", "IDQL": "32.0", "GEM": "80.0"}
    for name, mean in means.items():
        assert found[name].startswith(mean), name
    assert found["CQL"].startswith("9.0 (one seed)")


def test_a_method_below_both_the_data_and_cloning_is_named(parts):
    """TD3+BC is below the data alone, CQL below both."""
    said = [part for part in parts if isinstance(part, str) and part.startswith("Below both")]
    assert said == [f"Below both the data's own episodes and behaviour cloning: CQL on {TASK}."]


def test_gem_iql_and_cloning_are_told_after_as_many_updates_as_the_others():
    """The others stopped at 40 of 100 updates, where policies of the three were kept."""
    sixty_four = Knobs(**{**CHOSEN.__dict__, "n": 64})
    kept = [
        made_row(score, knobs, method, seed, protocol=protocol, updates=40)
        for method, knobs, score in (
            ("gem", sixty_four, 33.0),
            ("iql", NONE, 22.0),
            ("bc", NONE, 11.0),
        )
        for seed, protocol in ((0, "validation"), (1, "validation"), (0, "test"))
    ]
    others = [row for row in ROWS if row.method in ("td3bc", "cql", "idql")]
    mine = [row for row in ROWS if row not in others]
    early = [replace(row, updates=40) for row in others]

    def told(rows):
        parts = comparison.render(Facts(rows, RECORDS))
        return [part for part in parts if isinstance(part, Table) and "as many" in part.caption]

    elsewhere = [replace(row, task=OTHER, updates=20) for row in others]
    (table,) = told([*mine, *early, *kept, *elsewhere])
    assert table.caption.startswith("After 40 updates")
    assert [[cell.split(" ")[0] for cell in line] for line in table.lines] == [
        [TASK, "11.0", "22.0", "33.0"]
    ]
    assert told([*mine, *early]) == []
    assert told([*ROWS, *kept]) == []


def lost(*seeds, task=TASK):
    """Records of trainings that diverged."""
    return [{"task": task, "method": m, "seed": seed, "why": f"{m} {seed}"} for m, seed in seeds]


def test_seeds_that_diverged_are_told():
    """SAC-N has no seed that lasted, and CQL one."""
    records = {"diverged": lost(("sacn", 0), ("cql", 1))}
    parts = comparison.render(Facts(ROWS, RECORDS | records))
    table = next(part for part in parts if isinstance(part, Table))
    (line,) = table.lines
    found = dict(zip(table.headings, line, strict=True))
    assert found["SAC-N"].startswith("diverged")
    assert found["CQL"].startswith("9.0 (one seed) (1 more diverged)")
    (said,) = [part for part in parts if isinstance(part, str) and part.startswith("Diverged")]
    assert said == (
        f"Diverged, and so without a policy: SAC-N on {TASK}, seed 0 (sacn 0); "
        f"CQL on {TASK}, seed 1 (cql 1)."
    )


def test_where_every_training_diverged_the_table_says_so_and_nothing_else():
    parts = comparison.render(Facts([], {"diverged": lost(("sacn", 0))}))
    table = next(part for part in parts if isinstance(part, Table))
    assert [line[0] for line in table.lines] == [TASK]
    assert "diverged" in " ".join(table.lines[0])
    assert interface.render(Facts([], {"diverged": lost(("sacn", 0))})).parts[-1].startswith("Div")


def test_a_task_on_which_all_others_diverged_leaves_the_means_as_they_are():
    without = comparison.render(Facts(ROWS, RECORDS))
    there = comparison.render(Facts(ROWS, RECORDS | {"diverged": lost(("sacn", 0), task=OTHER)}))
    means = [[part for part in parts if isinstance(part, Table)][1] for parts in (without, there)]
    assert means[0].lines == means[1].lines
    assert len(means[0].lines) > 3


def test_a_method_that_draws_is_told_by_its_draws_at_any_temperature_above_0():
    """A temperature depends on the data's rewards, and the best of its samples is another way."""
    drawn, best = (
        replace(published_knobs("diffusionql"), temperature=heat) for heat in (0.25, 0.0)
    )
    rows = [*ROWS, *rows_of("diffusionql", 33.0, knobs=drawn)]
    rows += rows_of("diffusionql", 77.0, knobs=best)
    table = next(
        part for part in comparison.render(Facts(rows, RECORDS)) if isinstance(part, Table)
    )
    (line,) = table.lines
    assert dict(zip(table.headings, line, strict=True))["Diffusion-QL"].startswith("33.0")
    hotter = rows_of("diffusionql", 1.0, knobs=replace(drawn, temperature=0.5))
    with pytest.raises(
        DataError, match=r"diffusionql on .*, seed 0, have the temperatures 0.25, 0.5"
    ):
        comparison.render(Facts([*rows, *hotter], RECORDS))
    only_best = comparison.render(Facts([*ROWS, *rows_of("diffusionql", 77.0, knobs=best)], {}))
    assert "Diffusion-QL" not in next(p for p in only_best if isinstance(p, Table)).headings


def test_settings_that_are_not_a_methods_own_are_told():
    of_td3bc = {"task": TASK, "method": "td3bc", "settings": {"batch_size": 64}}
    plain = {"task": TASK, "method": "cql", "settings": {}}
    without_rows = {"task": TASK, "method": "dt", "settings": {"batch_size": 16}}
    records = RECORDS | {"settings": [of_td3bc, plain, without_rows]}
    said = [part for part in comparison.render(Facts(ROWS, records)) if "other set" in str(part)]
    changed = "batch_size 64 instead of 256"
    assert said == [f"With other settings than their own: TD3+BC on {TASK} ({changed})."]


def test_where_all_have_their_own_settings_nothing_is_said_of_them(parts):
    assert not [part for part in parts if isinstance(part, str) and "other settings" in part]


def test_where_the_datas_returns_are_not_known_nothing_is_said_of_them():
    parts = comparison.render(Facts(ROWS, {}))
    assert not [part for part in parts if isinstance(part, str) and part.startswith("Below both")]


def test_a_task_without_rows_of_gem_shows_the_methods_that_it_has():
    few = [row for row in ROWS if row.method in ("td3bc", "idql")]
    parts = comparison.render(Facts(few, RECORDS))
    (line,) = next(part for part in parts if isinstance(part, Table)).lines
    assert line[1:4] == ("20.0", "–", "–")
    assert line[-1] == "–"
    assert not [part for part in parts if isinstance(part, str) and part.startswith("Below both")]


def data_of(rewards, ends):
    rows = len(rewards)
    return from_arrays(
        np.zeros((rows, 2)), np.zeros((rows, 1)), rewards, np.zeros(rows, bool), ends,
        next_observations=np.zeros((rows, 2)),
        action_low=-1.0, action_high=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("task", "wanted"),
    [
        # Two episodes with returns of 3 and 0, four steps in all.
        ("hopper-medium-v2", 100 * (1.5 + 20.272305) / (3234.3 + 20.272305)),
        ("maze2d-umaze-v1", 100 * (300 * 3 / 4 - 23.85) / (161.86 - 23.85)),
        ("antmaze-umaze-v2", 50.0),
    ],
)
def test_the_datas_own_score_is_what_compares_with_an_evaluation(task, wanted):
    data = data_of(np.array([1.0, 2.0, 0.0, 0.0]), np.array([False, True, False, True]))
    found = comparison.data_record(task, data)
    assert found["mean"] == pytest.approx(wanted)
    assert found["episodes"] == 2


def test_without_other_methods_there_is_no_such_table():
    few = [row for row in ROWS if row.method in ("gem", "iql", "bc")]
    assert comparison.render(Facts(few, RECORDS)) == []


def test_means_over_tasks_are_of_the_methods_that_have_them_all():
    elsewhere = [
        replace(row, task=OTHER)
        for row in ROWS
        if row.method in ("bc", "td3bc") and row.protocol == "test"
    ]
    parts = comparison.render(Facts([*ROWS, *elsewhere], RECORDS))
    means = [part for part in parts if isinstance(part, Table)][1]
    assert "these 2 tasks" in means.caption
    assert [line[0] for line in means.lines] == ["BC", "TD3+BC"]
    assert {line[3] for line in means.lines} == {"4"}


def test_a_task_with_more_seeds_than_the_others_counts_no_more_than_they():
    elsewhere = [
        replace(row, task=OTHER)
        for row in ROWS
        if row.method == "td3bc" and row.protocol == "test" and row.train_seed == 0
    ]
    parts = comparison.render(Facts([*ROWS, *elsewhere], RECORDS))
    means = [part for part in parts if isinstance(part, Table)][1]
    [(_, mean, _, runs)] = means.lines
    assert runs == "2"
    assert float(mean) == pytest.approx(np.mean([row.score for row in elsewhere]), abs=0.05)
