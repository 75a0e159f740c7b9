"""Evaluation rows: one an episode, kept first. Every table and picture is a function of rows."""

import fcntl
import json
from collections.abc import Iterable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any, get_args

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

    mass_scale: float = 1.0
    """What the simulator's masses were multiplied with."""
    wall_seconds: float | None = field(default=None, compare=False)
    """Time the episode took: its share, by length, of the episodes that were stepped together."""
    decide_seconds: float | None = field(default=None, compare=False)
    """How much of it went into decisions."""
    simulate_seconds: float | None = field(default=None, compare=False)
    """How much of it went into the simulator."""

    @property
    def cell(self) -> str:
        """What episodes of one setting share."""
        return cell_of(self.bundle, self.task, self.protocol, self.knobs, self.mass_scale)


OPTIONAL = {each.name for each in fields(Row) if each.default is not MISSING}
"""Fields that rows of earlier versions lack."""
OF_EPISODE = (
    "episode_seed",
    "episode_return",
    "score",
    "length",
    "violation",
    "collapse_dist",
    "support_z",
    "executed_violation",
    "executed_collapse_dist",
    "executed_support_z",
    "lcb_spread",
    "wall_seconds",
    "decide_seconds",
    "simulate_seconds",
)
"""Fields in which the episodes of a cell differ."""
PACKED = "episodes"
"""Key of a line that holds all episodes of a cell."""
DIGITS = 6


def cell_of(
    bundle: str, task: str, protocol: str, knobs: dict[str, Any], mass_scale: float = 1.0
) -> str:
    """The name of a cell: one policy, task, protocol, setting of knobs and scale of the masses."""
    # What came later is named where it is used, so that cells keep their names, and with these the
    # files beside them.
    shifted = [] if mass_scale == 1.0 else [mass_scale]
    named = {k: v for k, v in knobs.items() if k != "temperature" or v != 0}
    return json.dumps([bundle, task, protocol, named, *shifted], sort_keys=True)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows at the end of a file. A last line that was cut short is dropped first.

    Processes that add to one file at the same time take turns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _mend_end(path)
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def pack_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as a file with one line a cell, a tenth of the size, which `read_rows` reads too.

    Numbers keep six significant digits.
    """
    cells: dict[str, list[Row]] = {}
    for row in rows:
        shared = {k: v for k, v in asdict(row).items() if k not in OF_EPISODE}
        cells.setdefault(json.dumps(shared), []).append(row)
    lines = []
    for shared, episodes in cells.items():
        columns = {name: [_short(getattr(row, name)) for row in episodes] for name in OF_EPISODE}
        lines.append(json.dumps(json.loads(shared) | {PACKED: columns}, separators=(",", ":")))
    with atomic_path(path) as temporary:
        temporary.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _short(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


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
    rows: list[Row] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a file of rows ({error})") from error
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        where = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise DataError(f"{where}: not a row ({error})") from error
        rows += [row_from_json(each, where) for each in _unpacked(values, where)]
    return rows


def row_from_json(values: Any, where: str) -> Row:
    """A row out of a line's values, which stand at `where`."""
    names = {each.name for each in fields(Row)}
    if not isinstance(values, dict) or not names - OPTIONAL <= set(values) <= names:
        raise DataError(f"{where}: not a row of this version of gemrl")
    try:
        # Rows of earlier versions lack knobs that came later, which have their defaults.
        values = values | {"knobs": Knobs.from_json(values["knobs"]).to_json()}
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: knobs that are none ({error})") from error
    for column in fields(Row):
        if column.name in values and column.name != "knobs":
            _require_sound(column, values[column.name], where)
    return Row(**values)


def _require_sound(column: Field[Any], value: Any, where: str) -> None:
    """Refuse a value that is not of its kind, or not finite: it would spoil every mean."""
    kinds: tuple[Any, ...] = get_args(column.type) or (column.type,)
    if value is None and NoneType in kinds:
        return
    whole_for_real = float in kinds and type(value) is int
    if not isinstance(value, kinds) and not whole_for_real:
        raise DataError(f"{where}: a row with {column.name} = {value!r}")
    if isinstance(value, float) and not isfinite(value):
        raise DataError(f"{where}: a row with {column.name} = {value}, which is not finite")


def _unpacked(values: Any, where: str) -> list[Any]:
    """The episodes of a line: itself, unless it holds a whole cell."""
    if not isinstance(values, dict) or PACKED not in values:
        return [values]
    columns = values[PACKED]
    shared = {name: value for name, value in values.items() if name != PACKED}
    whole = isinstance(columns, dict) and all(isinstance(c, list) for c in columns.values())
    if not whole or len({len(column) for column in columns.values()}) != 1:
        raise DataError(f"{where}: not the episodes of a cell")
    return [
        shared | dict(zip(columns, episode, strict=True))
        for episode in zip(*columns.values(), strict=True)
    ]
