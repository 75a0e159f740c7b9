"""Logs in CSV and Parquet files: what the mapping makes of them, and what is refused and how."""

import builtins
import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gemrl
from gemrl.data.readers.columns import Columns, chosen, columns_from, read_columns
from gemrl.errors import DataError, MissingExtraError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PLANT = Columns(observations=("temp", "flow"), actions=("valve",), reward="yield")


def plant(rows=6, **columns):
    """Columns that tell their rows apart."""
    number = [float(row) for row in range(rows)]
    return {
        "time": number,
        "temp": [20 + n for n in number],
        "flow": [n / 10 for n in number],
        "valve": [n / 100 for n in number],
        "yield": [1000 + n for n in number],
    } | columns


def write_csv(path, table):
    lines = [",".join(table)]
    for row in zip(*table.values(), strict=True):
        lines.append(",".join("" if cell is None else str(cell) for cell in row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_parquet(path, table, **options):
    parquet.write_table(pa.table(table), path, **options)
    return path


WRITERS = {"csv": write_csv, "parquet": write_parquet}


@pytest.fixture(params=WRITERS)
def write(request, tmp_path):
    return lambda table: WRITERS[request.param](tmp_path / f"log.{request.param}", table)


def refusal(path, columns):
    with pytest.raises(DataError) as caught:
        gemrl.load_dataset(path, columns=columns)
    assert str(path) in str(caught.value)
    return str(caught.value)


# What is read


def test_a_log_is_read_row_by_row(write):
    data = gemrl.load_dataset(write(plant()), columns=PLANT)
    # The last row has no successor.
    assert data.observations.tolist() == [[20 + n, np.float32(n / 10)] for n in range(5)]
    assert np.array_equal(data.next_observations[:-1], data.observations[1:])
    assert data.next_observations[-1, 0] == 25
    assert data.actions[:, 0].tolist() == [np.float32(n / 100) for n in range(5)]
    assert data.rewards.tolist() == [1000 + n for n in range(5)]
    assert data.masks.tolist() == [1] * 5
    assert data.observations.dtype == data.actions.dtype == np.float32


def test_both_formats_give_the_same_fingerprint(tmp_path):
    table = plant(episode=["a", "a", "a", "b", "b", "b"])
    prints = {
        gemrl.load_dataset(
            write(tmp_path / f"log.{name}", table), columns=columns_from(MAPPING)
        ).fingerprint
        for name, write in WRITERS.items()
    }
    assert len(prints) == 1


MAPPING = {
    "observations": ["temp", "flow"],
    "actions": "valve",
    "reward": "yield",
    "episode": "episode",
}


def test_what_was_asked_for_reads_the_same_dataset_again(write):
    path = write(plant(episode=["a", "a", "a", "b", "b", "b"]))
    data = gemrl.load_dataset(path, columns=MAPPING, bounds=(-1, [0.02]), outside="rescale")
    reading = json.loads(json.dumps(dict(data.reading)))
    assert reading["columns"] == MAPPING | {"actions": ["valve"]}
    again = gemrl.load_dataset(data.source, **reading)
    assert again.fingerprint == data.fingerprint
    assert again.notes == data.notes


def test_without_a_reward_column_rewards_are_zero_and_it_is_said(write, capsys):
    columns = Columns(observations=("temp",), actions=("valve",))
    data = gemrl.load_dataset(write(plant()), columns=columns)
    assert not data.rewards.any()
    assert any("no reward column" in note for note in data.notes)
    assert "no reward column" in capsys.readouterr().err


def test_without_an_episode_or_a_gap_the_file_is_one_episode_and_it_is_said(write, capsys):
    data = gemrl.load_dataset(write(plant()), columns=PLANT)
    assert len(data.episode_starts) == 1
    assert "the whole file is one episode" in capsys.readouterr().err


def test_empty_cells_are_read_as_nan_and_refused_for_training_only(write):
    data = gemrl.load_dataset(write(plant(temp=[20.0, None, 22, 23, 24, 25])), columns=PLANT)
    assert np.isnan(data.observations[1, 0])
    assert np.isnan(data.next_observations[0, 0])
    with pytest.raises(DataError, match=r"observations .* row 1\b"):
        data.require_trainable()


def test_a_column_of_nothing_is_read_as_nan(write):
    data = gemrl.load_dataset(write(plant(flow=[None] * 6)), columns=PLANT)
    assert np.isnan(data.observations[:, 1]).all()


def test_integers_and_truth_values_are_numbers(tmp_path):
    path = write_parquet(tmp_path / "log.parquet", plant(temp=range(6), flow=[True, False] * 3))
    data = gemrl.load_dataset(path, columns=PLANT)
    assert data.observations.tolist() == [[0, 1], [1, 0], [2, 1], [3, 0], [4, 1]]


def test_numbers_too_large_for_float32_are_left_for_training_to_refuse(write):
    data = gemrl.load_dataset(write(plant(temp=[1e300] * 6)), columns=PLANT)
    assert np.isinf(data.observations[:, 0]).all()


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_are_seen_in_the_first_line(delimiter, tmp_path):
    path = write_csv(tmp_path / "log.csv", plant())
    path.write_text("\ufeff" + path.read_text().replace(",", delimiter), encoding="utf-8")
    assert len(gemrl.load_dataset(path, columns=PLANT)) == 5


def test_delimiters_inside_quoted_names_do_not_count(tmp_path):
    path = write_csv(tmp_path / "log.csv", plant())
    head, *rows = path.read_text().replace(",", ";").splitlines()
    head = head.replace("time", '"time, s, since, then, on"').replace("temp", '"temp, C, inside"')
    path.write_text("\n".join([head, *rows]))
    columns = with_fields(observations=("temp, C, inside", "flow"))
    assert len(gemrl.load_dataset(path, columns=columns)) == 5


def test_bounds_of_a_mapping_are_said_to_be_its(write, capsys):
    path = write(plant())
    gemrl.load_dataset(path, columns=with_fields(action_low=(0.0,), action_high=(1.0,)))
    assert "action bounds: 0 to 1, as the mapping has them" in capsys.readouterr().err


# Columns


def test_a_star_takes_numbered_columns_by_their_number_and_others_as_they_come():
    have = ["s_10", "s_9", "a_x", "s_1", "a_b", "s", "s_x9"]
    assert chosen(["a_*"], have, "actions", "log") == ["a_x", "a_b"]
    numbered = ["s_10", "s_9", "s_1", "t"]
    assert chosen(["s_*"], numbered, "observations", "log") == ["s_1", "s_9", "s_10"]
    assert chosen(["t", "s_*"], numbered, "observations", "log") == ["t", "s_1", "s_9", "s_10"]


def test_names_may_be_separated_by_commas_and_hold_them():
    assert chosen(["b,a"], ["a", "b"], "actions", "log") == ["b", "a"]
    assert chosen(["b,a"], ["a", "b", "b,a"], "actions", "log") == ["b,a"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"observations": ("temp", "pressure")}, "'pressure' for observations"),
        ({"actions": ("lever_*",)}, "'lever_*' for actions"),
        ({"reward": "profit"}, "'profit'"),
        ({"episode": "run"}, "'run'"),
        ({"time": "clock"}, "'clock'"),
        ({"terminal": "done"}, "'done'"),
        ({"timeout": "cut"}, "'cut'"),
    ],
)
def test_a_missing_column_is_named_with_those_there_are(write, change, words):
    message = refusal(write(plant()), Columns(**(vars(PLANT) | change)))
    assert words in message
    for name in plant():
        assert f"'{name}'" in message


@pytest.mark.parametrize("field", ["observations", "actions"])
def test_a_mapping_without_observations_or_actions_is_refused(write, field):
    message = refusal(write(plant()), Columns(**(vars(PLANT) | {field: ()})))
    assert f"no {field} are named" in message


def test_a_column_that_is_both_observation_and_action_is_refused(write):
    message = refusal(write(plant()), Columns(observations=("temp", "valve"), actions=("valve",)))
    assert "both observation and action" in message


def test_a_column_named_twice_is_refused(write):
    columns = Columns(observations=("temp", "t*"), actions=("valve",))
    assert "name temp twice" in refusal(write(plant()), columns)


def test_without_a_mapping_the_error_shows_an_example_and_the_columns(write):
    message = refusal(write(plant()), None)
    assert 'actions = ["valve"]' in message
    assert "'flow'" in message
    assert refusal(write(plant()), Columns()) == message


def test_a_mapping_is_refused_for_other_files(tmp_path):
    np.savez(tmp_path / "data.npz", observations=np.zeros(3))
    assert "mapping" in refusal(tmp_path / "data.npz", PLANT)


def test_a_mapping_is_read_from_toml(tmp_path, write):
    path = tmp_path / "map.toml"
    path.write_text(
        'observations = ["temp", "flow"]\nactions = "valve"\nreward = "yield"\n'
        'time = "time"\ngap = 60\naction_low = 0\naction_high = [1.0]\n'
    )
    columns = read_columns(path)
    assert columns == Columns(
        observations=("temp", "flow"),
        actions=("valve",),
        reward="yield",
        time="time",
        gap=60.0,
        action_low=(0.0,),
        action_high=(1.0,),
    )
    log = write(plant())
    assert (
        gemrl.load_dataset(log, columns=path).fingerprint
        == gemrl.load_dataset(log, columns=columns).fingerprint
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('observation = ["temp"]', "unknown observation; known are observations, actions"),
        ("observations = [1]", "observations is [1]"),
        ("reward = 3", "reward is 3"),
        ('gap = "long"', "gap is 'long'"),
        ("gap = true", "gap is True"),
        ('gap = 60\ntime = "t"\naction_low = ["x"]', "action_low"),
        ("observations = [", "not a TOML file"),
    ],
)
def test_a_bad_mapping_file_is_refused_by_its_key(text, words, tmp_path):
    path = tmp_path / "map.toml"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_columns(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_mapping_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_columns(tmp_path / "map.toml")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gap": 60.0}, "gap needs the column of the time"),
        ({"gap": 0.0, "time": "t"}, "positive"),
        ({"gap": float("nan"), "time": "t"}, "positive"),
        ({"action_low": (0.0,)}, "go together"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(values, words):
    with pytest.raises(DataError, match=words):
        Columns(**values)


# Episodes


def with_fields(**fields):
    return Columns(**(vars(PLANT) | fields))


def test_an_episode_column_ends_episodes_where_it_changes(write):
    path = write(plant(run=["b", "b", "a", "a", "a", "c"]))
    data = gemrl.load_dataset(path, columns=with_fields(episode="run"))
    # The last rows, 1 and 4, and the lonely row 5 have no successor.
    assert data.rewards.tolist() == [1000, 1002, 1003]
    assert len(data.episode_starts) == 2


@pytest.mark.parametrize("ids", [[3, 3, 1, 1, 2, 2], [1.5, 1.5, 0, 0, 7, 7]])
def test_episodes_may_be_numbers(write, ids):
    data = gemrl.load_dataset(write(plant(run=ids)), columns=with_fields(episode="run"))
    assert data.rewards.tolist() == [1000, 1002, 1004]


def test_a_terminal_keeps_the_last_row_and_a_timeout_ends_the_episode(write):
    path = write(plant(done=[0, 1, 0, 0, 0, 1], cut=[0, 0, 0, 1, 0, 0]))
    data = gemrl.load_dataset(path, columns=with_fields(terminal="done", timeout="cut"))
    assert data.rewards.tolist() == [1000, 1001, 1002, 1004, 1005]
    assert data.masks.tolist() == [1, 0, 1, 1, 0]
    assert len(data.episode_starts) == 3


@pytest.mark.parametrize(
    "flags", [[False, True], ["false", "True"], [0.0, 1.0], ["0", "1"], ["FALSE", " true"]]
)
def test_truth_is_understood_in_several_spellings(write, flags):
    path = write(plant(done=[flags[n] for n in (0, 1, 0, 0, 0, 1)]))
    data = gemrl.load_dataset(path, columns=with_fields(terminal="done"))
    assert data.masks.tolist() == [1, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("bad", [2, "maybe", None, float("nan")])
def test_another_value_in_a_terminal_column_is_refused_by_its_row(write, bad):
    flags = [0, 0, 0, bad, 0, 1] if not isinstance(bad, str) else ["0", "0", "0", bad, "0", "1"]
    message = refusal(write(plant(done=flags)), with_fields(terminal="done"))
    assert "'done'" in message
    assert "row 3" in message


@pytest.mark.parametrize(
    "clock",
    [
        [0, 1, 2, 100, 101, 102],
        [0.5, 1.5, 2.5, 63.0, 64.0, 65.0],
        [f"2026-01-01T00:0{m}:0{s}" for m, s in ((0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2))],
        [
            f"2026-01-01 00:0{m}:0{s}.25Z"
            for m, s in ((0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2))
        ],
        [f"2026-01-01T00:00:0{s}+00:00" for s in (0, 1, 2)]
        + [f"2026-01-01T01:02:0{s}+01:00" for s in (0, 1, 2)],
    ],
)
def test_a_gap_in_time_starts_an_episode(write, clock):
    path = write(plant(clock=clock))
    data = gemrl.load_dataset(path, columns=with_fields(time="clock", gap=60.0))
    assert data.rewards.tolist() == [1000, 1001, 1003, 1004]


def test_parquet_timestamps_are_times(tmp_path):
    clock = np.array([0, 1, 2, 100, 101, 102], "datetime64[s]")
    for unit in ("ms", "ns"):
        table = plant(clock=pa.array(clock, pa.timestamp(unit, "UTC")))
        path = write_parquet(tmp_path / "log.parquet", table)
        data = gemrl.load_dataset(path, columns=with_fields(time="clock", gap=60.0))
        assert len(data.episode_starts) == 2


def test_nanoseconds_since_1970_are_not_rounded(tmp_path):
    clock = 1_790_000_000_000_000_000 + np.array([0, 100, 200, 500, 600, 700])
    table = plant(clock=pa.array(clock, pa.timestamp("ns")))
    path = write_parquet(tmp_path / "log.parquet", table)
    data = gemrl.load_dataset(path, columns=with_fields(time="clock", gap=2e-7))
    assert data.rewards.tolist() == [1000, 1001, 1003, 1004]


def test_time_that_runs_backwards_is_refused_by_its_row(write):
    path = write(plant(time=[0, 1, 2, 1.5, 4, 5]))
    message = refusal(path, with_fields(time="time", gap=60.0))
    assert "runs backwards in row 3" in message
    # Between episodes it may.
    path = write(plant(time=[0, 1, 2, 0, 1, 2], run=[0, 0, 0, 1, 1, 1]))
    gemrl.load_dataset(path, columns=with_fields(time="time", episode="run"))


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        (["0", "1", "2", "noon", "4", "5"], "row 3"),
        ([0.0, 1.0, None, 3.0, 4.0, 5.0], "row 2"),
        ([0.0, 1.0, float("inf"), 3.0, 4.0, 5.0], "row 2"),
    ],
)
def test_a_bad_time_is_refused_by_its_row(write, clock, words):
    message = refusal(write(plant(clock=clock)), with_fields(time="clock"))
    assert "'clock'" in message
    assert words in message


def test_interleaved_episodes_are_grouped_where_a_time_orders_them(write, capsys):
    path = write(plant(run=["a", "b", "a", "b", "a", "b"]))
    data = gemrl.load_dataset(path, columns=with_fields(episode="run", time="time"))
    assert data.rewards.tolist() == [1000, 1002, 1001, 1003]
    assert data.next_observations[:, 0].tolist() == [22, 24, 23, 25]
    assert "interleaved" in capsys.readouterr().err


def test_interleaved_episodes_without_a_time_are_refused_by_the_row(write):
    message = refusal(write(plant(run=["a", "a", "b", "b", "a", "c"])), with_fields(episode="run"))
    assert "row 4" in message
    assert "time" in message


def test_time_that_runs_backwards_in_grouped_rows_is_refused_by_the_files_row(write):
    path = write(plant(run=["a", "b", "a", "b", "a", "b"], time=[0, 0, 1, 1, 0.5, 2]))
    assert "row 4" in refusal(path, with_fields(episode="run", time="time"))


@pytest.mark.parametrize(
    ("clock", "row"),
    [
        (["2026-01-01T00:00:00"] * 3 + ["2026-01-01T00:00:00Z"] * 3, 3),
        (["2026-01-01T00:00:00Z"] * 5 + ["2026-01-01T00:00:00"], 5),
        (["2026-01-01T00:00:00+01:00"] * 2 + ["17.5"] * 4, 2),
        (["1", "2", "2026-01-01T00:00:00", "noon", "5", "6"], 2),
        (["noon", "2", "3", "4", "5", "6"], 0),
    ],
)
def test_times_of_different_kinds_are_refused_by_the_row_that_differs(write, clock, row):
    message = refusal(write(plant(clock=clock)), with_fields(time="clock"))
    assert f"and row {row} " in message
    assert repr(clock[row]) in message
    assert (f"has {clock[0]!r}" in message.partition(" where ")[2]) == (row > 0)


def test_an_episode_that_is_no_number_is_refused_by_its_row(tmp_path):
    path = write_parquet(tmp_path / "log.parquet", plant(run=[1.0, 1, float("nan"), 2, 2, 2]))
    assert "'run' is empty in row 2" in refusal(path, with_fields(episode="run"))


def test_an_empty_episode_is_refused_by_its_row(write):
    path = write(plant(run=["a", "a", None, "b", "b", "b"]))
    message = refusal(path, with_fields(episode="run"))
    assert "'run' is empty in row 2" in message


def test_text_ids_over_several_row_groups_are_the_same_episodes(tmp_path):
    path = tmp_path / "log.parquet"
    write_parquet(path, plant(run=["b", "b", "b", "a", "a", "a"]), row_group_size=2)
    data = gemrl.load_dataset(path, columns=with_fields(episode="run"))
    assert data.rewards.tolist() == [1000, 1001, 1003, 1004]


@given(
    steps=st.lists(st.floats(0, 10, allow_nan=False), min_size=2, max_size=30),
    runs=st.lists(st.integers(0, 2), min_size=2, max_size=30),
    gap=st.floats(0.5, 9),
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_episodes_by_gap_and_by_column_equal_a_plain_loop(tmp_path, steps, runs, gap):
    rows = min(len(steps), len(runs))
    time = np.cumsum(steps[:rows])
    path = write_parquet(tmp_path / "log.parquet", plant(rows, time=time, run=sorted(runs[:rows])))
    expected = []
    for row in range(rows - 1):
        same = sorted(runs[:rows])[row + 1] == sorted(runs[:rows])[row]
        if same and not time[row + 1] - time[row] > gap:
            expected.append(1000 + row)
    columns = with_fields(time="time", gap=gap, episode="run")
    if not expected:
        assert "successor" in refusal(path, columns)
        return
    data = gemrl.load_dataset(path, columns=columns)
    assert data.rewards.tolist() == expected
    assert np.array_equal(data.next_observations[:, 0], data.observations[:, 0] + 1)


# What is refused


def test_text_among_numbers_is_refused_by_column_and_row(write):
    path = write(plant(flow=["0.1", "0.2", "low", "0.4", "0.5", "0.6"]))
    message = refusal(path, PLANT)
    assert "'flow'" in message
    assert "row 2" in message
    assert "'low'" in message


def test_the_row_of_bad_text_is_right_far_down_a_large_file(tmp_path):
    table = plant(200_000)
    table["flow"][150_000] = "low"
    message = refusal(write_csv(tmp_path / "log.csv", table), PLANT)
    assert "row 150000 (line 150002)" in message


def test_lists_in_the_cells_are_refused_with_their_type(tmp_path):
    path = write_parquet(tmp_path / "log.parquet", plant(flow=[[1.0, 2.0]] * 6))
    assert "list<" in refusal(path, PLANT)


@pytest.mark.parametrize("text", ["", "time,temp\n1,2\n3\n", "\x00\x01\x02", "a,\xb0C\n1,2\n"])
def test_what_is_no_csv_is_refused(text, tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode("latin-1"))
    refusal(path, PLANT)


def test_a_log_without_rows_is_refused(write):
    assert "no rows" in refusal(write({name: [] for name in plant()}), PLANT)


def test_a_log_of_one_row_is_refused(write):
    assert "the log has a single row" in refusal(write(plant(1)), PLANT)


def test_episodes_of_one_row_are_refused_with_a_question_about_their_columns(write):
    path = write(plant(run=list("abcdef"), clock=[1000 * n for n in range(6)], cut=[1] * 6))
    for mapped, words in (
        ({"episode": "run"}, "is the episode column 'run' unique to each row?"),
        ({"time": "clock", "gap": 60.0}, "is the time 'clock' in milliseconds"),
        ({"timeout": "cut"}, "is the timeout column 'cut' true in every row?"),
    ):
        message = refusal(path, with_fields(**mapped))
        assert "every episode has one row" in message
        assert words in message
        assert message.count("?") == 1
        assert "next_observations" not in message


def test_terminals_in_episodes_of_one_row_are_kept(write):
    path = write(plant(run=list("abcdef"), done=[0, 0, 1, 0, 0, 0]))
    data = gemrl.load_dataset(path, columns=with_fields(episode="run", terminal="done"))
    assert data.rewards.tolist() == [1002]


def test_decimal_commas_are_refused_with_a_hint(tmp_path):
    path = write_csv(tmp_path / "log.csv", plant())
    path.write_text(path.read_text().replace(",", ";").replace(".", ","))
    message = refusal(path, PLANT)
    assert "row 0" in message
    assert "decimals need a point, not a comma" in message
    path = write_parquet(tmp_path / "log.parquet", plant(flow=["0,1", "0,2", "3,5", "4", "5", "6"]))
    assert "'0,1': decimals need a point, not a comma" in refusal(path, PLANT)


@pytest.mark.parametrize("cell", ["low", "1,000,000", "a, b"])
def test_other_text_gets_no_hint_about_decimals(cell, tmp_path):
    path = write_parquet(tmp_path / "log.parquet", plant(flow=[cell, "0", "0", "0", "0", "0"]))
    assert "decimals" not in refusal(path, PLANT)


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("temp,flow,valve,flow\n1,2,3,4\n5,6,7,8\n")
    assert "more than once" in refusal(path, PLANT)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    path = write_csv(tmp_path / "log.csv", plant())
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"gemrl\[logs\]"):
        gemrl.load_dataset(path, columns=PLANT)


# The page about logs


def test_the_page_about_logs_is_right(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "your-logs.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    make, load, in_memory = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    (mapping,) = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    exec(compile(make, "your-logs.md", "exec"), {})
    shown = Path("plant.csv").read_text().splitlines()[:4]
    assert "\n".join(f"    {line}" for line in shown) in page
    Path("map.toml").write_text(mapping)
    names = {}
    exec(compile(load, "your-logs.md", "exec"), names)
    data = gemrl.load_dataset("plant.csv", columns="map.toml", bounds="0,1")
    assert data.fingerprint == names["data"].fingerprint
    assert (len(data), len(data.episode_starts)) == (5900, 100)
    exec(compile(in_memory, "your-logs.md", "exec"), names)
    assert len(names["data"]) == 990
    for field in fields(Columns):
        assert f"`{field.name}`" in page
