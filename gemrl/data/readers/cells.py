"""The columns of a log as arrays: numbers, flags, episodes and times, each bad cell named."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gemrl.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_NO_TIME = np.iinfo(np.int64).min


class Cells:
    """A table in memory, read column by column."""

    def __init__(self, table: "pa.Table", source: str, place: Callable[[int], str]) -> None:
        self.table = table.unify_dictionaries()
        self.source = source
        self.place = place
        """How a row is called in messages."""

    def __len__(self) -> int:
        return self.table.num_rows

    def numbers(self, names: list[str]) -> np.ndarray:
        """Columns as float32 [T, N]; an empty cell is NaN."""
        values = np.empty((len(self), len(names)), dtype=np.float32)
        with np.errstate(over="ignore"):  # Too large is infinite, which training refuses.
            for i, name in enumerate(names):
                values[:, i] = self._floats(name)
        return values

    def _floats(self, name: str) -> np.ndarray:
        import pyarrow as pa
        from pyarrow import types

        column = self.table[name]
        kind = column.type
        if types.is_boolean(kind):
            column = column.cast(pa.uint8())
        elif _is_text(kind):
            texts = column.to_pylist()
            row = next((i for i, text in enumerate(texts) if not _is_float(text)), None)
            if row is not None:
                raise DataError(
                    f"{self.source}: column {name!r} must hold numbers, and {self.place(row)} has "
                    f"{texts[row]!r}{decimal_hint(texts[row])}"
                )
        elif not any(
            test(kind)
            for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
        ):
            raise DataError(
                f"{self.source}: column {name!r} holds {kind}; it must be one number a row"
            )
        return column.cast(pa.float64(), safe=False).to_numpy()

    def episodes(self, name: str) -> np.ndarray:
        """Number of each row's episode, counted as they first appear."""
        values, codes = self._encoded(name)
        # A NaN is no ID either; it is the one value that differs from itself.
        missing = np.array([value in (None, "") or value != value for value in values])[codes]
        if missing.any():
            raise DataError(
                f"{self.source}: the episode column {name!r} is empty in "
                f"{self.place(int(np.argmax(missing)))}"
            )
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[codes]

    def flags(self, name: str) -> np.ndarray:
        """A column of truth values."""
        values, codes = self._encoded(name)
        known = [_FLAGS.get(str(value).strip().lower()) for value in values]
        bad = np.array([flag is None for flag in known])[codes]
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(
                f"{self.source}: column {name!r} must hold 0 and 1 or true and false, and "
                f"{self.place(row)} has {values[codes[row]]!r}"
            )
        return np.array(known, dtype=object)[codes].astype(bool)

    def _encoded(self, name: str) -> tuple[list[Any], np.ndarray]:
        """The different values of a column, None last, and which of them each row has."""
        column = self.table[name].combine_chunks()
        encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
        values = [*encoded.dictionary.to_pylist(), None]
        codes = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
        return values, codes

    def seconds(self, name: str) -> np.ndarray:
        """A column of the time, in seconds from anywhere."""
        import pyarrow as pa
        from pyarrow import types

        column = self.table[name]
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        kind = column.type
        if _is_text(kind):
            column = self._parsed_time(name, column)
        elif types.is_date(kind) or types.is_timestamp(kind):
            column = column.cast(pa.timestamp("ns"))
        elif not (types.is_integer(kind) or types.is_floating(kind)):
            raise DataError(
                f"{self.source}: the time {name!r} holds {kind}; must be seconds or timestamps"
            )
        if types.is_timestamp(column.type):
            whole = column.cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
            bad = whole == _NO_TIME
            seconds = (whole - whole[0]) / 1e9  # As integers: floats would lose microseconds.
        else:
            seconds = column.cast(pa.float64(), safe=False).to_numpy()
            bad = ~np.isfinite(seconds)
        if bad.any():
            raise DataError(
                f"{self.source}: the time {name!r} is empty or not finite in "
                f"{self.place(int(np.argmax(bad)))}"
            )
        return seconds

    def _parsed_time(self, name: str, column: "pa.ChunkedArray") -> "pa.ChunkedArray":
        import pyarrow as pa

        for kind in _time_kinds():
            try:
                return column.cast(kind)
            except pa.ArrowInvalid:
                continue
        texts = column.to_pylist()
        kinds = (_time_kind(text) for text in texts)
        first = next(kinds)
        others = (i for i, kind in enumerate(kinds, 1) if kind != first)
        row = 0 if first is None else next(others, 0)
        other = f" where {self.place(0)} has {texts[0]!r}" if row else ""
        raise DataError(
            f"{self.source}: the time {name!r} must be seconds throughout or ISO timestamps "
            "throughout, all with a time zone or all without, and "
            f"{self.place(row)} has {texts[row]!r}{other}{decimal_hint(texts[row])}"
        )


def _is_text(kind: "pa.DataType") -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind)


def _is_float(text: str | None) -> bool:
    try:
        return text is None or float(text) is not None
    except ValueError:
        return False


def _time_kinds() -> "tuple[pa.DataType, ...]":
    import pyarrow as pa

    return pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC")


def _time_kind(text: str | None) -> "pa.DataType | None":
    """How a single cell is read as a time, if it can be."""
    import pyarrow as pa

    for kind in _time_kinds():
        try:
            pa.scalar(text, pa.string()).cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return None


def decimal_hint(text: str | None) -> str:
    """What to do about a number with a comma for its point."""
    if text is None or not re.search(r"(?<![\d,])\d+,\d+(?![\d,])", text):
        return ""
    return ": decimals need a point, not a comma"
