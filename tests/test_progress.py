"""What a person sees of a long step, in a terminal and in a log."""

import io

import pytest
from rich.console import Console

from gemrl import progress
from gemrl.progress import bar, bars, later_part

DETAIL = "critic 0.012 value 0.003 actor -1.32 held-out nll -0.87"


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    time = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: time[0])
    return time


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal of some width, whose output a test can read."""

    def make(width):
        file = io.StringIO()
        screen = Console(file=file, width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(progress, "console", screen)
        return file

    return make


def shown(progress_bars, width):
    """The lines that bars show now in a terminal of this width."""
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(progress_bars.get_renderable())
    return screen.file.getvalue().rstrip("\n").split("\n")


def running(clock, title="train gem: behavior", total=1_000_000, detail=DETAIL):
    """Bars of a step at 2,500 updates a second that has done a fifth."""
    found = progress.make_progress("updates")
    found.get_time = lambda: clock[0]
    task = found.add_task(title, total=total)
    for done in (100_000, 150_000, 200_000):
        clock[0] += 20
        found.update(task, completed=done)
    found.update(task, detail=detail)
    return found


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_live_line_fits_the_terminal_and_has_everything(clock, width):
    line, below = shown(running(clock), width)
    assert len(line) <= width
    assert line.startswith("train gem: behavior ━")
    assert line.rstrip().endswith("200000/1000000 2,500 updates/s, 5:20 left")
    assert below.rstrip() == f"  {DETAIL}"


def test_the_bar_shrinks_before_any_word_does(clock):
    narrow, wide = (shown(running(clock), width)[0] for width in (80, 120))
    start, end = "train gem: behavior ", "  200000/1000000"

    def bar_of(line):
        return line.removeprefix(start).partition(end)[0]

    assert len(bar_of(narrow)) < len(bar_of(wide)) == progress.BAR_WIDTH
    assert len(narrow.rstrip()) == 80


def test_a_detail_too_long_for_the_terminal_is_cut_not_wrapped(clock):
    lines = shown(running(clock, detail="loss 1.234 " * 20), 80)
    assert len(lines) == 2
    assert len(lines[1]) == 80
    assert lines[1].endswith("…")


def test_brackets_in_a_detail_are_no_markup(clock):
    assert "[red] 1" in shown(running(clock, detail="[red] 1"), 80)[1]


def test_bars_side_by_side_say_whose_a_detail_is(clock):
    found = running(clock, title="seed 0")
    found.add_task("seed 1", total=10)
    lines = shown(found, 80)
    assert [line.split()[:2] for line in lines[:2]] == [["seed", "0"], ["seed", "1"]]
    assert lines[2].rstrip() == f"  seed 0: {DETAIL}"


def test_a_detail_stays_on_the_screen_until_there_is_another(terminal):
    file = terminal(80)
    with bar("train", 30, "updates") as report:
        report(10, "loss 3")
        report(30)
    last = file.getvalue()[file.getvalue().rindex("30/30") :]
    assert "loss 3" in last
    file = terminal(80)
    with bar("train", 30, "updates") as report:
        report(10, "loss 3")
        report(30, "loss 2")
    last = file.getvalue()[file.getvalue().rindex("30/30") :]
    assert "loss 2" in last
    assert "loss 3" not in last


def test_a_log_has_a_line_every_ten_seconds_with_the_last_detail(clock, capsys):
    with bar("train gem", 10_000, "updates") as report:
        for second in range(26):
            clock[0] = float(second)
            report(second * 100, f"loss {second}" if second % 5 == 0 else "")
        clock[0] = 100.0
        report(10_000)
        report(10_000)
    assert capsys.readouterr().err.splitlines() == [
        "train gem: 1,000 of 10,000, 100 updates/s, 1:30 left; loss 10",
        "train gem: 2,000 of 10,000, 100 updates/s, 1:20 left; loss 20",
        "train gem: 10,000 updates done in 1:40; loss 25",
    ]


def test_a_resumed_steps_rate_leaves_out_what_was_done_before(clock, capsys):
    with bar("train", 10_000, "updates") as report:
        report(8_000)
        clock[0] = 10.0
        report(9_000)
    assert capsys.readouterr().err == "train: 9,000 of 10,000, 100 updates/s, 0:10 left\n"


def test_reports_of_several_steps_need_no_detail(clock, capsys):
    with bars("steps", {"a": 2, "b": 3}) as report:
        report("a", 2)
        report("b", 3, "well")
    assert capsys.readouterr().err.splitlines() == [
        "a: 2 steps done in 0:00",
        "b: 3 steps done in 0:00; well",
    ]


def test_a_quiet_bar_says_nothing(capsys):
    with bar("train", 3, "updates", quiet=True) as report:
        report(3, "loss 1")
    assert capsys.readouterr().err == ""


def test_a_later_part_counts_on_from_the_parts_before():
    heard = []
    part = later_part(lambda done, detail="": heard.append((done, detail)), 100)
    part(5)
    part(6, "well")
    assert heard == [(105, ""), (106, "well")]
