"""Cells: what is run, what is not run again, and what happens when somebody dies."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemrl
from gemrl.errors import ConfigError, DataError, EvaluationError
from gemrl.evaluate.cells import TRIES, Cell, here, load_policy, run_cells
from gemrl.evaluate.rows import OF_EPISODE, OPTIONAL, Row, append_rows, pack_rows, read_rows
from gemrl.evaluate.workers import processes
from gemrl.learn.bundle import MANIFEST, load_manifest, manifest_digest

# All of one shape, which is compiled once.
KNOBS = [gemrl.Knobs(n=4, wp=wp) for wp in (0.2, 0.5, 1.0)]


def without_times(rows):
    return [
        {k: v for k, v in dataclasses.asdict(row).items() if not k.endswith("_seconds")}
        for row in rows
    ]


def cells_of(run, episodes=2):
    return [Cell(run, knobs, episodes, "validation") for knobs in KNOBS]


def evaluate(cells, file, runner=None):
    return run_cells(cells, lambda _: file, runner, quiet=True)


def noting(handed, runner=here):
    """A runner that notes the seeds that it is asked for."""

    def run(jobs):
        handed.extend(job["seeds"] for job in jobs)
        return runner(jobs)

    return run


@pytest.fixture(scope="module")
def rows(run_folder, tmp_path_factory):
    """Two episodes of each setting, run in this process."""
    return evaluate(cells_of(run_folder), tmp_path_factory.mktemp("rows") / "rows.jsonl")


def children(word):
    """This process's children whose command has a word in it."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = (status.parent / "cmdline").read_text()
        except OSError:  # It has just ended.
            continue
        if parent == os.getpid() and word in command:
            found.append(int(status.parent.name))
    return found


# What is run


def test_cells_give_the_rows_of_a_plain_evaluation(rows, policy):
    for i, knobs in enumerate(KNOBS):
        plain = gemrl.evaluate_policy(policy, knobs, episodes=2, protocol="validation", quiet=True)
        assert without_times(plain) == without_times(rows[2 * i : 2 * i + 2])


def test_finished_cells_are_never_run_again(run_folder, rows, tmp_path):
    append_rows(tmp_path / "rows.jsonl", rows[:3])
    before = (tmp_path / "rows.jsonl").read_bytes()
    handed = []
    again = evaluate(cells_of(run_folder), tmp_path / "rows.jsonl", noting(handed))
    assert handed == [[1], [0, 1]]
    assert again[:3] == rows[:3]
    assert without_times(again[4:]) == without_times(rows[4:])
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(before)
    handed.clear()
    assert evaluate(cells_of(run_folder), tmp_path / "rows.jsonl", noting(handed)) == again
    assert handed == []


def test_a_cell_asked_for_twice_is_run_once_with_the_larger_count(run_folder, tmp_path):
    file, handed = tmp_path / "rows.jsonl", []
    cells = [Cell(run_folder, KNOBS[0], count, "validation") for count in (1, 3, 2)]
    found = evaluate(cells, file, noting(handed))
    assert handed == [[0, 1, 2]]
    assert [row.episode_seed for row in found] == [0, 0, 1, 2, 0, 1]
    assert len(read_rows(file)) == 3


def test_rows_of_a_packed_file_count_as_done(run_folder, rows, tmp_path):
    pack_rows(tmp_path / "rows.jsonl", rows)
    handed = []
    found = evaluate(cells_of(run_folder), tmp_path / "rows.jsonl", noting(handed))
    assert handed == []
    assert [row.score for row in found] == pytest.approx([row.score for row in rows], rel=1e-5)
    evaluate(cells_of(run_folder, 3)[:1], tmp_path / "rows.jsonl", noting(handed))
    assert handed == [[2]]
    assert len(read_rows(tmp_path / "rows.jsonl")) == len(rows) + 1


def test_a_folder_that_was_trained_anew_gives_rows_of_its_new_policy(run_folder, tmp_path):
    run, file = tmp_path / "run", tmp_path / "rows.jsonl"
    shutil.copytree(run_folder, run)
    cell = Cell(run, KNOBS[0], 2, "validation")
    first = evaluate([cell], file)
    manifest = load_manifest(run)
    manifest["updates"]["main"] += 1
    manifest["digest"] = manifest_digest(manifest)
    (run / MANIFEST).write_text(json.dumps(manifest))
    second = evaluate([cell], file)
    assert {row.updates for row in first} == {600}
    assert {row.updates for row in second} == {601}
    assert len(read_rows(file)) == 4
    with pytest.raises(EvaluationError, match="another policy"):
        load_policy(run, first[0].bundle)


@pytest.mark.long
def test_a_policy_without_a_density_is_audited_by_another(run_folder, maze_data, tmp_path):
    clone, knobs = tmp_path / "bc", gemrl.Knobs(n=0, wp=0.0)
    gemrl.train(maze_data, gemrl.BcConfig(steps=20, hidden=(16, 16)), clone, quiet=True)
    plain = evaluate([Cell(clone, knobs, 1)], tmp_path / "plain.jsonl")
    audited = evaluate([Cell(clone, knobs, 1, audited_by=run_folder)], tmp_path / "rows.jsonl")
    assert plain[0].executed_collapse_dist is None
    assert audited[0].executed_collapse_dist > 0
    assert (audited[0].score, audited[0].bundle) == (plain[0].score, plain[0].bundle)


# Processes


@pytest.mark.long
def test_processes_give_the_rows_that_this_process_gives(run_folder, rows, tmp_path):
    found = evaluate(cells_of(run_folder), tmp_path / "rows.jsonl", processes(2))
    assert without_times(found) == without_times(rows)
    assert children("gemrl.evaluate.workers") == []


@contextmanager
def killing_workers(most):
    """Kill the worker processes that start while the block runs, so many at most."""
    killed, over = set(), threading.Event()

    def kill():
        while not over.wait(0.01):
            for child in set(children("gemrl.evaluate.workers")) - killed:
                if len(killed) < most:
                    os.kill(child, signal.SIGKILL)
                    killed.add(child)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        over.set()
        killer.join()


def test_a_cell_whose_process_is_killed_is_tried_again(run_folder, rows, tmp_path):
    with killing_workers(1) as killed:
        found = evaluate(cells_of(run_folder)[:1], tmp_path / "rows.jsonl", processes(1))
    assert len(killed) == 1
    assert without_times(found) == without_times(rows[:2])
    assert len(read_rows(tmp_path / "rows.jsonl")) == 2


@pytest.mark.long
def test_a_process_killed_in_the_middle_costs_one_cell(run_folder, rows, tmp_path):
    killed = []

    def run(jobs):
        for done in processes(1)(jobs):
            if not killed:  # It is at the second cell.
                killed.extend(children("gemrl.evaluate.workers"))
                os.kill(killed[0], signal.SIGKILL)
            yield done

    found = evaluate(cells_of(run_folder), tmp_path / "rows.jsonl", run)
    assert len(killed) == 1
    assert without_times(found) == without_times(rows)
    assert len(read_rows(tmp_path / "rows.jsonl")) == len(rows)


def test_a_cell_whose_process_always_dies_is_an_error_that_names_it(run_folder, tmp_path):
    dies = rf"N 4, λ 1, w_p 0\.5: .* died {TRIES} times"
    with killing_workers(99) as killed, pytest.raises(EvaluationError, match=dies):
        evaluate(cells_of(run_folder)[1:2], tmp_path / "rows.jsonl", processes(1))
    assert len(killed) == TRIES
    assert read_rows(tmp_path / "rows.jsonl") == []


def test_a_mistake_that_a_process_finds_comes_back_as_one_line(run_folder, tmp_path):
    with pytest.raises(EvaluationError, match="hopper-medium-v2 has 11 observation") as caught:
        evaluate(
            [Cell(run_folder, KNOBS[0], 1, task="hopper-medium-v2")],
            tmp_path / "rows.jsonl",
            processes(1),
        )
    assert "\n" not in str(caught.value)


def test_fewer_than_one_process_is_refused():
    with pytest.raises(ConfigError, match="processes = 0"):
        processes(0)


def serving(evaluate_work):
    """A worker process with another way to evaluate."""
    words = (
        "import time, gemrl.evaluate.workers as workers\n"
        f"workers.evaluate_work = {evaluate_work}\n"
        "workers.serve()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_what_a_library_prints_in_a_worker_is_not_taken_for_an_answer():
    with serving("lambda job: print('Hello from a library') or []") as worker:
        worker.stdin.write("{}\n")
        worker.stdin.flush()
        assert json.loads(worker.stdout.readline()) == {"rows": []}


def test_a_worker_ends_with_its_driver_even_in_the_middle_of_a_cell():
    worker = serving("lambda job: workers.os.write(2, b'at it\\n') and time.sleep(3600)")
    worker.stdin.write("{}\n")
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0
    worker.stdout.close()


DRIVER = """
import sys
from pathlib import Path
from gemrl.decide.knobs import Knobs
from gemrl.evaluate.cells import Cell, run_cells
from gemrl.evaluate.workers import processes
run, file = map(Path, sys.argv[1:])
cells = [Cell(run, Knobs(n=4, wp=wp), 2, "validation") for wp in (0.2, 0.5, 1.0)]
run_cells(cells, lambda _: file, processes(1), quiet=True)
"""


def killed_driver(run, file):
    """Start a driver, kill it when its first cell is in the file, and return what is there."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(run), str(file)])
    try:
        until = time.monotonic() + 120
        while not read_rows(file):
            assert driver.poll() is None, "the driver ended by itself"
            assert time.monotonic() < until, "no row came"
            time.sleep(0.02)
    finally:
        driver.kill()
        driver.wait()
    return read_rows(file)


@pytest.mark.long
def test_a_killed_driver_started_again_loses_nothing_and_repeats_nothing(
    run_folder, rows, tmp_path
):
    file, handed = tmp_path / "rows.jsonl", []
    left = killed_driver(run_folder, file)
    done = {row.cell for row in left}
    found = evaluate(cells_of(run_folder), file, noting(handed))
    assert len(handed) == len(KNOBS) - len(done)
    assert read_rows(file)[: len(left)] == left
    assert len(read_rows(file)) == len(rows)
    assert without_times(found) == without_times(rows)


# Files of rows


APPENDER = """
import dataclasses, sys
from pathlib import Path
from gemrl.evaluate.rows import append_rows, read_rows
source, target, name = sys.argv[1:]
row = dataclasses.replace(read_rows(source)[0], bundle=name)
for seed in range(200):
    append_rows(Path(target), [dataclasses.replace(row, episode_seed=seed)])
"""


def test_processes_that_append_at_the_same_time_leave_whole_lines(rows, tmp_path):
    append_rows(tmp_path / "one.jsonl", rows[:1])
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDER, tmp_path / "one.jsonl", tmp_path / "all.jsonl", name]
        )
        for name in ("a" * 64, "b" * 64)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    found = read_rows(tmp_path / "all.jsonl")
    for name in ("a" * 64, "b" * 64):
        assert [row.episode_seed for row in found if row.bundle == name] == list(range(200))


numbers = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | numbers
audits = {
    name: maybe
    for name in OF_EPISODE
    if name not in ("episode_seed", "episode_return", "score", "length")
}
some_rows = st.builds(
    Row,
    task=st.sampled_from(["maze2d-umaze-v1", "hopper-medium-v2"]),
    bundle=st.sampled_from(["a", "b"]),
    protocol=st.sampled_from(["validation", "test"]),
    knobs=st.sampled_from([knobs.to_json() for knobs in KNOBS]),
    mass_scale=st.sampled_from([1.0, 1.5]),
    episode_seed=st.integers(0, 2_000_000),
    episode_return=numbers,
    score=numbers,
    length=st.integers(1, 1000),
    **audits,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(some_rows, max_size=8))
def test_packed_rows_come_back_to_six_digits(tmp_path_factory, given_rows):
    path = tmp_path_factory.mktemp("packed") / "rows.jsonl"
    pack_rows(path, given_rows)
    found = read_rows(path)
    # Rows of a cell stand together, in the order in which they came.
    key = lambda row: repr([v for k, v in vars(row).items() if k not in OF_EPISODE])  # noqa: E731
    expected = sorted(given_rows, key=key)
    assert len(found) == len(expected)
    for got, want in zip(sorted(found, key=key), expected, strict=True):
        for name, value in vars(want).items():
            if isinstance(value, float):
                assert getattr(got, name) == pytest.approx(value, rel=5.1e-6, abs=0)
            else:
                assert getattr(got, name) == value


@pytest.mark.parametrize("write", [append_rows, pack_rows])
def test_rows_from_before_there_was_a_knob_have_its_default(rows, write, tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, rows)
    now = read_rows(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        assert line["knobs"].pop("temperature") == 0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_rows(path) == now
    assert [row.cell for row in read_rows(path)] == [row.cell for row in now]


def damaged(line, how):
    values = json.loads(line)
    columns = values["episodes"]
    if how == "a column cut short":
        columns["score"] = columns["score"][:-1]
    elif how == "a column missing":
        del columns["score"]
    elif how == "a column too many":
        columns["colour"] = columns["score"]
    elif how == "a column that is none":
        columns["score"] = 3
    elif how == "no columns":
        values["episodes"] = {}
    elif how == "a list of columns":
        values["episodes"] = list(columns.values())
    elif how == "a shared field missing":
        del values["task"]
    elif how == "knobs that are none":
        values["knobs"] = {"n": "many"}
    else:
        return line[: len(line) // 2]
    return json.dumps(values)


@pytest.mark.parametrize(
    "how",
    [
        "a column cut short",
        "a column missing",
        "a column too many",
        "a column that is none",
        "no columns",
        "a list of columns",
        "a shared field missing",
        "knobs that are none",
        "half a line",
    ],
)
def test_a_damaged_packed_line_is_an_error_that_names_file_and_line(rows, how, tmp_path):
    path = tmp_path / "rows.jsonl"
    pack_rows(path, rows)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], damaged(lines[1], how), lines[2]]) + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2\b"):
        read_rows(path)


def test_rows_of_before_the_newer_fields_are_read_and_count_as_done(run_folder, rows, tmp_path):
    file = tmp_path / "rows.jsonl"
    older = [
        {k: v for k, v in dataclasses.asdict(row).items() if k not in OPTIONAL} for row in rows
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in older))
    found = read_rows(file)
    assert without_times(found) == without_times(rows)
    assert {(row.mass_scale, row.wall_seconds) for row in found} == {(1.0, None)}
    handed = []
    assert evaluate(cells_of(run_folder), file, noting(handed)) == found
    assert handed == []
