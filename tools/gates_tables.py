"""The rows of `measure_gates.py` as Markdown: a pure function of the committed files."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemrl.decide.knobs import Knobs
from gemrl.maths.statistics import estimate

Row = dict[str, Any]
COLUMNS = ("support", "novelty", "spread", "together")
RUNGS = ("search", "smaller_n", "anchor", "behavior")


def tables(folder: Path) -> str:
    """Every table, one after the other."""
    parts = [
        ("### False alarms on held-out episodes", rates),
        ("### Alarms on shifted states", detect),
        ("### Scores of novelty", novelty),
        ("### Drift monitor", drift),
        ("### Closed loop", loop),
    ]
    text = []
    for (title, table), name in zip(
        parts, ("rates", "detect", "novelty", "drift", "loop"), strict=True
    ):
        for path in sorted(folder.glob(f"{name}-*.jsonl")):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            text.append(f"{title}: {rows[0]['task']}\n\n{table(rows)}")
    return "\n\n".join(text)


def rates(rows: list[Row]) -> str:
    """Mean and standard deviation over the splits of each gate's alarms."""
    header = ["stated rate", "episodes, states", *COLUMNS]
    body = []
    for alpha, group in _groups(rows, lambda r: r["alpha"]):
        cells = []
        for gate in COLUMNS:
            found = 100 * np.array([row["rates"][gate] for row in group])
            cells.append(f"{found.mean():.2f} ± {found.std(ddof=1):.2f}")
        sizes = [np.median([row[name] for row in group]) for name in ("episodes", "states")]
        body.append([f"{100 * alpha:g} %", ", ".join(f"{s:,.0f}" for s in sizes), *cells])
    splits = len({row["split"] for row in rows})
    return f"{_knobs(rows[0])}, {splits} splits.\n\n{_table(header, body)}"


def detect(rows: list[Row]) -> str:
    """Each gate's alarms under each shift, in percent."""
    body = [
        [row["shift"], *(f"{100 * row['rates'][gate]:.1f}" for gate in COLUMNS)] for row in rows
    ]
    states = min(row["states"] for row in rows)
    about = f"{_knobs(rows[0])}, alpha 1 %, {states:,} states or more each, in percent."
    return f"{about}\n\n{_table(['shift', *COLUMNS], body)}"


def novelty(rows: list[Row]) -> str:
    """A row for each score, a column for each shift, in percent."""
    shifts = [_short(name) for name in dict.fromkeys(row["shift"] for row in rows)]
    body = [
        [score, *(f"{100 * row['rate']:.1f}" for row in group)]
        for score, group in _groups(rows, lambda r: r["score"])
    ]
    return _table(["score", *shifts], body)


def drift(rows: list[Row]) -> str:
    """Share of repeats with an alarm, and after how many episodes or steps."""
    body = []
    for stream, group in _groups(rows, lambda r: r["stream"]):
        steps = [row["alarm"]["step"] for row in group if row["alarm"]]
        first = f"{np.median(steps):.0f}" if steps else "–"
        share = f"{100 * len(steps) / len(group):.1f} %"
        sizes = [f"{group[0][name]}" for name in ("learned", "episodes")]
        body.append([stream, *sizes, f"{len(group)}", share, first])
    header = ["stream", "learned", "watched", "repeats", "alarm", "at (median)"]
    return f"{_knobs(rows[0])}, delta {100 * rows[0]['delta']:g} %.\n\n{_table(header, body)}"


def loop(rows: list[Row]) -> str:
    """Scores with their standard errors, and the share of steps of each rung."""
    body = []
    for key, group in _groups(rows, lambda r: json.dumps([r["knobs"], r["guard"]])):
        knobs, guard = json.loads(key)
        cells = ["none", *["–"] * len(RUNGS)]
        if guard is not None:
            steps = sum(sum(row["rungs"].values()) for row in group)
            taken = [sum(row["rungs"].get(rung, 0) for row in group) for rung in RUNGS]
            what = f"{100 * guard['alpha']:g} %, {guard['on_novelty']} where novel"
            cells = [what, *(f"{100 * count / steps:.1f}" for count in taken)]
        score = str(estimate([row["score"] for row in group]))
        body.append([Knobs.from_json(knobs).describe(), score, *cells])
    header = ["decisions", "score", "guard", *(f"{rung} %" for rung in RUNGS)]
    episodes = len({row["episode_seed"] for row in rows})
    at = Knobs.from_json(rows[0]["calibrated_at"]).describe()
    return f"{episodes} test episodes, gates calibrated at {at}.\n\n{_table(header, body)}"


def _short(shift: str) -> str:
    """A shift's name for a narrow column."""
    for word in (" standard deviations", "noise of ", "a sensor ", "driving, "):
        shift = shift.replace(word, "noise " if word.startswith("noise") else "")
    return shift


def _knobs(row: Row) -> str:
    return f"Decisions at {Knobs.from_json(row['knobs']).describe()}"


def _groups(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[tuple[Any, list[Row]]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return list(found.items())


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
