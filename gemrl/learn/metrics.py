"""A run's metrics: JSON lines that a resumed run continues without gaps or repeats."""

import json
from pathlib import Path
from typing import Any

from gemrl.data.storage import write_text
from gemrl.errors import DataError

METRICS = "metrics.jsonl"


def append_metrics(run: Path, line: dict[str, Any]) -> None:
    """Add a line. Half of one, left by a full disk or a kill, is dropped on resuming."""
    try:
        with open(run / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise DataError(f"cannot write {run / METRICS}: {error.strerror}") from error


def cut_metrics(run: Path, done: int) -> None:
    """Drop lines past the checkpoint, or half a line, before going on from it."""
    path = run / METRICS
    kept = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["update"] <= done:
                    kept.append(line + "\n")
            except (json.JSONDecodeError, KeyError):
                break
    write_text(path, "".join(kept))


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The metrics of a run, one dictionary a line."""
    path = Path(run) / METRICS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def last_update(run: Path) -> int:
    """Updates that a run's metrics speak of so far; 0 before the first line."""
    return int(last_metrics(run).get("update", 0))


def last_metrics(run: Path) -> dict[str, Any]:
    """The last whole line of a run's metrics; empty before the first."""
    try:
        whole, _, _ = (run / METRICS).read_text(encoding="utf-8").rpartition("\n")
        return json.loads(whole.rpartition("\n")[2])
    except (OSError, json.JSONDecodeError):
        return {}
