"""Evaluation rows: one an episode, kept first. Every table and picture is a function of rows."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gemrl.data.storage import atomic_path
from gemrl.decide.knobs import Knobs
from gemrl.errors import DataError

ROWS = "rows.jsonl"

PROTOCOLS = {"validation": range(0, 1_000_000), "test": range(1_000_000, 2_000_000)}
"""Seeds of evaluation episodes. Knobs are chosen on validation seeds, scores told on test seeds."""


@dataclass(frozen=True)
class Row:
    """One evaluation episode."""

    task: str
    env_id: str
    simulator: str
    method: str
    bundle: str
    """Digest of the policy."""
    data_origin: str
    data_fingerprint: str
    """Names the contents of the dataset that the policy was trained on."""
    train_seed: int
    updates: int
    protocol: str
    episode_seed: int
    knobs: dict[str, Any]
    episode_return: float
    score: float
    """Normalized by the task's reference returns."""
    length: int
    violation: float | None
    """Share of steps whose chosen candidate has support_z below -2."""
    collapse_dist: float | None
    support_z: float | None
    executed_violation: float | None
    executed_collapse_dist: float | None
    executed_support_z: float | None
    lcb_spread: float | None
    """Mean standard deviation of the lower bound over a candidate set: read w_p beside it."""

    @property
    def cell(self) -> str:
        """What episodes of one setting share."""
        return cell_of(self.bundle, self.task, self.protocol, self.knobs)


def cell_of(bundle: str, task: str, protocol: str, knobs: dict[str, Any]) -> str:
    """The name of a cell: one policy, task, protocol and setting of knobs."""
    return json.dumps([bundle, task, protocol, knobs], sort_keys=True)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows at the end of a file. A last line that was cut short is dropped first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _mend_end(path)
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def _mend_end(path: Path) -> None:
    """Make a file of rows end with a whole line."""
    data = path.read_bytes() if path.exists() else b""
    if not data or data.endswith(b"\n"):
        return
    whole, _, last = data.rpartition(b"\n")
    lines = [*whole.splitlines(), *([last] if _is_json(last) else [])]
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"".join(line + b"\n" for line in lines))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a file; none where there is no file. A last line cut short is left out."""
    path = Path(path)
    if not path.exists():
        return []
    names = {field.name for field in fields(Row)}
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a file of rows ({error})") from error
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise DataError(f"{path}, line {number}: not a row ({error})") from error
        if not isinstance(values, dict) or set(values) != names:
            raise DataError(f"{path}, line {number}: not a row of this version of gemrl")
        try:
            Knobs.from_json(values["knobs"])
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}, line {number}: knobs that are none ({error})") from error
        rows.append(Row(**values))
    return rows
