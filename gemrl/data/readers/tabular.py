"""Logs in CSV and Parquet files, read through a mapping of their columns."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemrl.data.dataset import Raw
from gemrl.data.limits import check_size
from gemrl.data.readers.cells import Cells, decimal_hint
from gemrl.data.readers.columns import EXAMPLE, Columns, chosen, listed
from gemrl.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa


def read_log(path: Path, columns: Columns | None) -> Raw:
    """Read a .csv or .parquet file."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingExtraError(
            f"{path}: reading logs needs pyarrow, which is not installed: gemrl[logs]"
        ) from error
    file = _Csv(path) if path.suffix.lower() == ".csv" else _Parquet(path)
    try:
        return _Reading(file, columns).log()
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory") from error
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a readable {file.kind} file ({error})") from error


class _Csv:
    """Numbers are read as such, everything else as text."""

    kind = "CSV"

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        from pyarrow import csv

        with open(self.path, "rb") as file:
            head = re.sub(rb'"[^"]*"', b"", file.readline(2**20))  # A name may hold any of them.
        self.parse = csv.ParseOptions(delimiter=max(",;\t", key=lambda c: head.count(c.encode())))
        with csv.open_csv(self.path, parse_options=self.parse) as reader:
            self.have = reader.schema.names
        return self.have

    def read(self, numbers: list[str], others: list[str]) -> "pa.Table":
        import pyarrow as pa
        from pyarrow import csv

        types = dict.fromkeys(numbers, pa.float64()) | dict.fromkeys(others, pa.string())
        convert = csv.ConvertOptions(include_columns=list(types), column_types=types)

        def attempt(use_threads: bool) -> "pa.Table":
            how = csv.ReadOptions(use_threads=use_threads)
            return csv.read_csv(
                self.path, read_options=how, parse_options=self.parse, convert_options=convert
            )

        try:
            return attempt(use_threads=True)
        except pa.ArrowInvalid:
            pass
        try:
            return attempt(use_threads=False)  # One thread knows in which row it failed.
        except pa.ArrowInvalid as error:
            place = re.search(r"column #(\d+): Row #(\d+): .*?(invalid value .*)", str(error))
            if place is None:
                raise
            name, row = self.have[int(place[1])], int(place[2]) - 2
            raise DataError(
                f"{self.path}: column {name!r} must hold numbers, and {self.place(row)} has an "
                f"{place[3]}{decimal_hint(place[3])}"
            ) from error

    def place(self, row: int) -> str:
        return f"row {row} (line {row + 2})"


class _Parquet:
    """Columns have the types that the file gives them."""

    kind = "Parquet"

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        from pyarrow import parquet

        with parquet.ParquetFile(self.path) as file:
            return file.schema_arrow.names

    def read(self, numbers: list[str], others: list[str]) -> "pa.Table":
        from pyarrow import parquet

        names = list(dict.fromkeys([*numbers, *others]))
        # Text stays a list of its different values: a few bytes can repeat a long one forever.
        with parquet.ParquetFile(self.path, read_dictionary=others) as file:
            about = file.metadata
            # The sizes of columns would say more, but asking pyarrow for those of a damaged file
            # can end the process.
            unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            claimed = max(unpacked, 8 * about.num_rows * len(names))
            check_size(claimed, self.path.stat().st_size, str(self.path))
            table = file.read(columns=names)
        table.validate(full=True)
        if table.num_rows != about.num_rows:
            raise DataError(
                f"{self.path}: claims {about.num_rows:,} rows and has {table.num_rows:,}"
            )
        return table

    def place(self, row: int) -> str:
        return f"row {row}"


class _Reading:
    """One file, one mapping."""

    def __init__(self, file: _Csv | _Parquet, columns: Columns | None) -> None:
        self.file = file
        self.source = str(file.path)
        have = file.names()
        if twice := {name for name in have if have.count(name) > 1}:
            raise DataError(f"{self.source}: has columns {listed(sorted(twice))} more than once")
        if columns is None:
            raise DataError(
                f"{self.source}: a log needs a mapping of its columns, such as {EXAMPLE}; as "
                "flags, in a file (--columns FILE.toml) or as columns=Columns(...); the file has "
                f"{listed(have)}"
            )
        self.columns = columns
        self.observations = chosen(columns.observations, have, "observations", self.source)
        self.actions = chosen(columns.actions, have, "actions", self.source)
        if both := set(self.observations) & set(self.actions):
            raise DataError(
                f"{self.source}: {listed(sorted(both))} is both observation and action: the policy "
                "would be shown the action that it has to choose; name it once"
            )
        others = [columns.episode, columns.time, columns.terminal, columns.timeout]
        numbers = [*self.observations, *self.actions]
        numbers += [columns.reward] if columns.reward is not None else []
        for name in (*numbers, *others):
            if name is not None and name not in have:
                raise DataError(f"{self.source}: has no column {name!r}; it has {listed(have)}")
        others = [name for name in others if name is not None and name not in numbers]
        self.cells = Cells(file.read(numbers, others), self.source, file.place)
        self.rows = len(self.cells)
        if self.rows == 0:
            raise DataError(f"{self.source}: the log has no rows")

    def log(self) -> Raw:
        """The arrays, in the order of episodes."""
        order, ends, notes = self._split()
        rewards = np.zeros(self.rows, np.float32)
        if self.columns.reward is not None:
            rewards = self.cells.numbers([self.columns.reward])[:, 0]
        else:
            notes.append("no reward column: all rewards are zero, and there is only behaviour")
        arrays = {
            "observations": self.cells.numbers(self.observations),
            "actions": self.cells.numbers(self.actions),
            "rewards": rewards,
            "terminals": self._flags(self.columns.terminal),
            "timeouts": self._flags(self.columns.timeout),
        }
        if order is not None:
            arrays = {name: array.take(order, axis=0) for name, array in arrays.items()}
        arrays["timeouts"] |= ends
        if (arrays["timeouts"] & ~arrays["terminals"]).all():
            raise DataError(f"{self.source}: {self._lonely()}")
        low, high = (
            np.array(limit, dtype=np.float32)
            for limit in (self.columns.action_low, self.columns.action_high)
        )
        return Raw(arrays, tuple(notes), (low, high) if low.size else None)

    def _lonely(self) -> str:
        """Why no row may have another after it."""
        if self.rows == 1:
            return "the log has a single row, which has no successor"
        columns, asked = self.columns, []
        if columns.gap is not None:
            asked.append(f"is the time {columns.time!r} in milliseconds, where gap is in seconds?")
        if columns.episode is not None:
            asked.append(f"is the episode column {columns.episode!r} unique to each row?")
        if columns.timeout is not None:
            asked.append(f"is the timeout column {columns.timeout!r} true in every row?")
        return f"every episode has one row, so that none has a successor; {' '.join(asked)}"

    def _flags(self, name: str | None) -> np.ndarray:
        return np.zeros(self.rows, dtype=bool) if name is None else self.cells.flags(name)

    def _split(self) -> tuple[np.ndarray | None, np.ndarray, list[str]]:
        """The order of rows where it is not the file's, the last rows of episodes, and notes."""
        columns, notes = self.columns, []
        order = None
        ends = np.zeros(self.rows, dtype=bool)
        ends[-1] = True
        if columns.episode is not None:
            codes = self.cells.episodes(columns.episode)
            starts = np.flatnonzero(np.diff(codes)) + 1
            if len(starts) > codes.max():
                back = int(starts[np.argmax(codes[starts] < np.maximum.accumulate(codes)[starts])])
                if columns.time is None:
                    raise DataError(
                        f"{self.source}: the rows of an episode do not lie together: "
                        f"{columns.episode!r} comes back to an earlier one in "
                        f"{self.file.place(back)}; sort the file, or name a column of the time, by "
                        "which it can be checked that their order is right"
                    )
                order = np.argsort(codes, kind="stable")
                codes = codes[order]
                notes.append(f"episodes were interleaved: rows are grouped by {columns.episode!r}")
            ends[:-1] |= np.diff(codes) != 0
        if columns.time is not None:
            seconds = self.cells.seconds(columns.time)
            steps = np.diff(seconds if order is None else seconds[order])
            if (backwards := (steps < 0) & ~ends[:-1]).any():
                row = int(np.argmax(backwards)) + 1
                row = row if order is None else int(order[row])
                raise DataError(
                    f"{self.source}: the time {columns.time!r} runs backwards in "
                    f"{self.file.place(row)}, within an episode; sort the rows, or name a column "
                    "that tells the episodes apart"
                )
            if columns.gap is not None:
                ends[:-1] |= steps > columns.gap
        if columns.episode is None and columns.gap is None:
            notes.append(
                "neither an episode column nor a gap in time is given: apart from terminals and "
                "timeouts the whole file is one episode"
            )
        return order, ends, notes
