"""What a file may be and claim, checked before any of it is read.

A header of a few bytes can claim terabytes, a small archive can unpack into them, and a link can
lead into another file. So sizes are held against what is really stored, and links are not followed
out of the file.
"""

import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gemrl.errors import DataError

if TYPE_CHECKING:
    import h5py

# A column of zeros shrinks a thousandfold under gzip, but the whole file only as far as its
# observations and actions do: real ones at most 2 to 1, maze2d with its sparse rewards too. Beyond
# 100 to 1 are all zeros or one-hot vectors; what is free lets a million rows of 16 such through.
FREE = 64 * 2**20
"""Bytes that any file may unpack to."""
RATIO = 100
"""Bytes of memory beyond these for each byte stored."""


class Shaped(Protocol):
    """An array in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Type of an element."""
        ...


def check_layout(arrays: Mapping[str, Shaped], source: str) -> None:
    """Refuse arrays whose types, shapes or lengths are not those of D4RL's layout."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise DataError(f"{source}: {name} has type {array.dtype}, not real numbers")
    shape = arrays["observations"].shape
    rows = shape[0] if shape else 0
    for name, array in arrays.items():
        if len(array.shape) == 0 or array.shape[0] != rows:
            length = f"{array.shape[0]} rows" if array.shape else "no rows"
            raise DataError(f"{source}: {name} has {length} where observations has {rows}")
    if rows == 0:
        raise DataError(f"{source}: the dataset is empty; it needs at least one transition")
    for name, array in arrays.items():
        if name in ("rewards", "terminals", "timeouts"):
            if math.prod(array.shape) != rows:
                raise DataError(
                    f"{source}: {name} has shape {array.shape}: must be one number a row"
                )
        elif len(array.shape) != 2:
            raise DataError(
                f"{source}: {name} has shape {array.shape}, not 2 axes: a row must be a vector of "
                "numbers; images and sequences are not supported"
            )


def check_size(claimed: int, stored: int, source: str) -> None:
    """Refuse a claim of memory that the bytes stored do not make believable."""
    if claimed > FREE + RATIO * stored:
        raise DataError(
            f"{source}: claims {claimed / 2**20:,.0f} MiB of arrays out of {stored:,} bytes "
            f"stored, more than {RATIO} times as much: it is damaged or hostile; if it is "
            "neither, write it anew without compression"
        )


# HDF5


@contextmanager
def opened_hdf5(path: Path) -> Iterator["h5py.File"]:
    """The file open for reading; what the library says of a broken one becomes a `DataError`."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory") from error
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise DataError(f"{path}: not a readable HDF5 file ({error})") from error


def hdf5_member(
    group: "h5py.Group", name: str, source: str, links: int = 0
) -> "h5py.Group | h5py.Dataset | None":
    """What a name leads to inside the file; None where there is nothing of that name."""
    import h5py

    item = group
    for part in name.split("/"):
        if part in ("", "."):
            continue
        if not isinstance(item, h5py.Group):
            return None
        link = item.get(part, getlink=True)
        if link is None:
            return None
        if isinstance(link, h5py.HardLink):
            item = item[part]
        elif isinstance(link, h5py.SoftLink) and links < 8:
            start = group.file if link.path.startswith("/") else item
            item = hdf5_member(start, link.path, source, links + 1)
        else:
            raise DataError(
                f"{source}: {name} is a link that leaves the file or does not end; copy what it "
                "points to into this file"
            )
    if item is not None and not isinstance(item, h5py.Group | h5py.Dataset):
        raise DataError(f"{source}: {name} is neither an array nor a group")
    return item


def hdf5_array(group: "h5py.Group", name: str, source: str) -> "h5py.Dataset | None":
    """An array of numbers that the file itself holds, not yet read."""
    import h5py

    item = hdf5_member(group, name, source)
    if item is None:
        return None
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        raise DataError(f"{source}: {name} is not an array of numbers")
    if item.dtype.kind not in "fiub":
        raise DataError(f"{source}: {name} has type {item.dtype}, not real numbers")
    if item.is_virtual or item.external:
        raise DataError(f"{source}: {name} is kept in other files; copy it into this file")
    settings = item.id.get_create_plist()
    filters = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
    if len(set(filters)) < len(filters):  # Packed twice, bytes can become millions.
        raise DataError(f"{source}: {name} is compressed more than once; write it anew")
    return item


def check_hdf5_sizes(arrays: Iterable["h5py.Dataset"], path: Path) -> None:
    """Refuse arrays that claim more than their storage could fill, or less than it holds.

    HDF5 reads what was never written as zeros, so each must have been written to its end.
    """
    claimed = stored = 0
    for array in arrays:
        chunk = array.chunks or array.shape
        chunks = math.prod(
            -(-size // max(wide, 1)) for size, wide in zip(array.shape, chunk, strict=True)
        )
        # A chunk is unpacked whole, and may be larger than the array.
        size = max(math.prod(array.shape), math.prod(chunk)) * array.dtype.itemsize
        held = _held(array, chunks, path)
        # Packing can make a chunk a little longer, never much: more unpacks to more than a chunk.
        if held > 1.1 * max(chunks, 1) * (math.prod(chunk) * array.dtype.itemsize + 1024):
            raise DataError(f"{path}: {array.name} holds {held:,} bytes and claims {size:,}")
        claimed += size
        stored += held
    check_size(claimed, min(stored, path.stat().st_size), str(path))


def _held(array: "h5py.Dataset", chunks: int, path: Path) -> int:
    """Bytes stored of an array, every chunk of which must have been written."""
    what = f"{path}: {array.name} has shape {array.shape}"
    # A chunk takes a byte at least. Where more are claimed, even counting takes ages.
    if chunks > (length := path.stat().st_size):
        raise DataError(
            f"{what} in {chunks:,} chunks, which cannot all have been written to {length:,} bytes: "
            "an interrupted writer?"
        )
    held = array.id.get_storage_size()
    if chunks and not held:
        raise DataError(f"{what} and holds no data: an interrupted writer?")
    if array.chunks and (written := array.id.get_num_chunks()) < chunks:
        raise DataError(
            f"{what}, but only {written:,} of {chunks:,} chunks were ever written: an interrupted "
            "writer?"
        )
    return held


def hdf5_text(file: "h5py.File", name: str) -> str | None:
    """An attribute that is one piece of text; None where there is none."""
    value = file.attrs[name] if name in file.attrs and _is_small(file, name) else None
    if isinstance(value, bytes):  # Text of a fixed length.
        value = value.decode()
    return value if isinstance(value, str) else None


def hdf5_attribute(file: "h5py.File", name: str) -> np.ndarray | None:
    """An attribute of numbers; None where there is none."""
    value = np.asarray(file.attrs[name]) if name in file.attrs and _is_small(file, name) else None
    return value if value is not None and value.dtype.kind in "fiub" else None


def _is_small(file: "h5py.File", name: str) -> bool:
    return file.attrs.get_id(name).get_storage_size() <= 2**20


# NPZ


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype
    is_fortran: bool
    length: int
    """Bytes of the header itself."""


def read_npz(
    path: Path,
    names: Collection[str] | None = None,
    check: Callable[[Mapping[str, Shaped]], None] | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file, or those of the given names that it has; never objects.

    `check` sees their names, types and shapes before any is read.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # A single array is no archive.
            entries = {
                entry.filename.removesuffix(".npy"): entry
                for entry in archive.infolist()
                if entry.filename.endswith(".npy")
            }
            wanted = {name: e for name, e in entries.items() if names is None or name in names}
            stored = min(sum(e.compress_size for e in wanted.values()), path.stat().st_size)
            check_size(sum(e.file_size for e in wanted.values()), stored, str(path))
            headers = {n: _npy_header(archive, e, f"{path}: {n}") for n, e in wanted.items()}
            if check is not None:
                check(headers)
            return {n: _npy_array(archive, e, headers[n], path) for n, e in wanted.items()}
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory") from error
    except (
        OSError,
        ValueError,
        TypeError,
        EOFError,
        RuntimeError,  # An encrypted archive, or a compression that is not known.
        OverflowError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{path}: not a readable NPZ file ({error})") from error


def _npy_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, what: str) -> _Header:
    """What an array says of itself, which must agree with its length."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in readers:
            raise DataError(f"{what} has an NPY header of version {version}, not 1.0 or 2.0")
        shape, is_fortran, dtype = readers[version](stream)
        length = stream.tell()
    if dtype.hasobject:
        raise DataError(f"{what} has type {dtype}: objects are never read, they could run code")
    held = entry.file_size - length
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed != held:
        raise DataError(f"{what} claims {claimed:,} bytes in shape {shape} and holds {held:,}")
    return _Header(shape, dtype, is_fortran, length)


def _npy_array(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, header: _Header, path: Path
) -> np.ndarray:
    """An array, unpacked straight into its place."""
    order = "F" if header.is_fortran else "C"
    array = np.empty(header.shape, dtype=header.dtype, order=order)
    place = array.reshape(-1, order="A").view(np.uint8)
    with archive.open(entry) as stream:
        stream.read(header.length)
        at = 0
        while at < len(place):
            read = stream.read(min(len(place) - at, 2**20))
            if not read:
                raise DataError(f"{path}: {entry.filename} ends after {at:,} bytes")
            place[at : at + len(read)] = np.frombuffer(read, np.uint8)
            at += len(read)
        stream.read(1)  # Past the end, where the archive checks its sum.
    return array
