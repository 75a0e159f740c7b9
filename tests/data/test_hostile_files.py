"""Broken and hostile files: each is refused as a `DataError`, soon and in little memory."""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib

import h5py
import numpy as np
import pytest

import gemrl
from gemrl.data.limits import FREE, RATIO
from gemrl.data.readers.columns import Columns
from gemrl.errors import DataError

ROWS = 30
BILLION = 10**9
LOG = Columns(observations=("s",), actions=("a",), reward="r", episode="e")
SHAPES = {
    "observations": (4,),
    "actions": (2,),
    "rewards": (),
    "terminals": (),
    "timeouts": (),
    "next_observations": (4,),
}


def small_arrays():
    return {name: np.zeros((ROWS, *shape), np.float32) for name, shape in SHAPES.items()}


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def edited(path, edit, without=()):
    """A good HDF5 file with some arrays missing, then edited."""
    write_hdf5(path, {k: v for k, v in small_arrays().items() if k not in without})
    with h5py.File(path, "a") as file:
        edit(file)
    return path


def refusal(path, columns=None):
    with pytest.raises(DataError) as caught:
        gemrl.load_dataset(path, columns=columns)
    assert str(path) in str(caught.value)
    return str(caught.value)


# Files that claim or unpack to far more than they hold


def hdf5_claims_a_billion_rows_in_chunks(path):
    with h5py.File(path, "w") as file:
        for name, shape in SHAPES.items():
            file.create_dataset(name, (BILLION, *shape), "f4", chunks=(1000, *shape))
    return path


def hdf5_claims_a_billion_rows_in_one_piece(path):
    with h5py.File(path, "w") as file:
        for name, shape in SHAPES.items():
            file.create_dataset(name, (BILLION, *shape), "f4")
    return path


def hdf5_bomb(path):
    """480 MB of zeros that were really compressed, beside 20 MB of something else."""
    rows, chunk = 120_000_000 // 12, 100_000
    with h5py.File(path, "w") as file:
        file["infos"] = np.random.default_rng(0).integers(256, size=20_000_000, dtype=np.uint8)
        for name, shape in SHAPES.items():
            array = file.create_dataset(
                name, (rows, *shape), "f4", chunks=(chunk, *shape), compression="gzip"
            )
            packed = zlib.compress(bytes(4 * chunk * int(np.prod(shape))), 9)
            for start in range(0, rows, chunk):
                array.id.write_direct_chunk((start, *(0 for _ in shape)), packed)
    return path


def hdf5_with_a_chunk_of_gigabytes(path):
    def edit(file):
        array = file.create_dataset(
            "rewards", (ROWS,), "f4", chunks=(750_000_000,), maxshape=(None,), compression="gzip"
        )
        array.id.write_direct_chunk((0,), zlib.compress(bytes(1000)))

    return edited(path, edit, ["rewards"])


def hdf5_compressed_twice(path):
    def edit(file):
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((ROWS,))
        settings.set_deflate(9)
        settings.set_deflate(9)
        space = h5py.h5s.create_simple((ROWS,))
        h5py.h5d.create(file.id, b"rewards", h5py.h5t.IEEE_F32LE, space, settings)

    return edited(path, edit, ["rewards"])


def hdf5_with_a_chunk_that_unpacks_to_more(path):
    def edit(file):
        array = file.create_dataset("rewards", (ROWS,), "f4", chunks=(ROWS,), compression="gzip")
        array.id.write_direct_chunk((0,), zlib.compress(bytes(200_000_000), 9))

    return edited(path, edit, ["rewards"])


def npz_bomb(path):
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("observations.npy", "w", force_zip64=True) as entry,
    ):
        entry.write(npy_header((25_000_000, 4), "<f4"))
        for _ in range(25):
            entry.write(bytes(16_000_000))
    return path


def small_npz_bomb(path):
    """A whole dataset of zeros: 234 MB of them in a quarter of a megabyte."""
    arrays = {name: np.zeros((4_500_000, *shape), "f4") for name, shape in SHAPES.items()}
    np.savez_compressed(path, **arrays)
    assert path.stat().st_size < 250_000
    return path


def npz_that_lacks_arrays(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "observations.npy", npy_header((10_000_000, 4), "<f4") + bytes(160_000_000)
        )
    return path


def npz_claims_32_gib_in_the_header(path):
    return write_npz(path, {"observations": npy_header((2**31, 4), "<f4") + bytes(64)})


def npz_claims_4_gib_in_its_directory(path):
    """The header of the array agrees with it; only the bytes are missing."""
    header = npy_header((2**30 - 1000, 1), "<f4")
    return lying_npz(path, header + bytes(64), len(header) + 4 * (2**30 - 1000))


def npz_claims_60_mib_in_its_directory(path):
    """Little enough to be believed, until the bytes end."""
    header = npy_header((15 * 2**20, 1), "<f4")
    return lying_npz(path, header + bytes(64), len(header) + 60 * 2**20)


def parquet_bomb(path):
    """Rows that all hold the same, of which Parquet keeps one."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({name: np.zeros(1_000_000) for name in "sar"} | {"e": ["x"] * 1_000_000})
    with parquet.ParquetWriter(path, table.schema) as writer:
        for _ in range(20):
            writer.write_table(table)
    return path


def parquet_claims_billions_of_rows(path):
    write_parquet(path, rows=12_345)
    return forged(path, 12_345, 5 * BILLION)


FLOODS = [
    (hdf5_claims_a_billion_rows_in_chunks, "hdf5"),
    (hdf5_claims_a_billion_rows_in_one_piece, "hdf5"),
    (hdf5_bomb, "hdf5"),
    (hdf5_with_a_chunk_of_gigabytes, "hdf5"),
    (hdf5_compressed_twice, "hdf5"),
    (hdf5_with_a_chunk_that_unpacks_to_more, "hdf5"),
    (npz_bomb, "npz"),
    (small_npz_bomb, "npz"),
    (npz_that_lacks_arrays, "npz"),
    (npz_claims_32_gib_in_the_header, "npz"),
    (npz_claims_4_gib_in_its_directory, "npz"),
    (npz_claims_60_mib_in_its_directory, "npz"),
    (parquet_bomb, "parquet"),
    (parquet_claims_billions_of_rows, "parquet"),
]
READ = """
import json, resource, sys, time
from gemrl.data.readers.columns import Columns
from gemrl.data.readers import load_dataset
from gemrl.errors import DataError
import h5py, pyarrow.parquet, pyarrow.csv

path, columns = sys.argv[1:]
columns = json.loads(columns) if path.endswith("parquet") else None
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 600 * 2**20,) * 2)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, message = time.perf_counter(), None
try:
    load_dataset(path, columns=columns)
except DataError as error:
    message = str(error)
seconds = time.perf_counter() - start
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
print(json.dumps({"message": message, "seconds": seconds, "mebibytes": grown / 1024}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
@pytest.mark.parametrize(("make", "suffix"), FLOODS, ids=[make.__name__ for make, _ in FLOODS])
def test_a_flood_is_refused_soon_and_in_little_memory(make, suffix, tmp_path):
    pytest.importorskip("pyarrow")
    path = make(tmp_path / f"data.{suffix}")
    columns = json.dumps({"observations": "s", "actions": "a", "reward": "r", "episode": "e"})
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), columns],
        capture_output=True,
        text=True,
        env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"},
        check=True,
    )
    result = json.loads(done.stdout)
    assert result["message"] is not None
    assert str(path) in result["message"]
    assert "does not fit into memory" not in result["message"]
    # What is believed at first is at most 64 MiB; the clock has room for a slow machine.
    assert result["mebibytes"] < (90 if make is npz_claims_60_mib_in_its_directory else 40)
    assert result["seconds"] < 5


def test_honest_zeros_are_read_though_they_compress_a_thousandfold(tmp_path):
    rows = 200_000
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for name, shape in SHAPES.items():
            file.create_dataset(
                name, data=np.zeros((rows, *shape), "f4"), chunks=(rows, *shape), compression=9
            )
    assert rows * 4 * 13 > 300 * path.stat().st_size
    assert len(gemrl.load_dataset(path)) == rows
    np.savez_compressed(
        tmp_path / "data.npz",
        **{name: np.zeros((rows, *shape), "f4") for name, shape in SHAPES.items()},
    )
    assert len(gemrl.load_dataset(tmp_path / "data.npz")) == rows


def test_a_million_honest_rows_are_read_though_gzip_shrinks_their_rewards_beyond_the_limit(
    tmp_path,
):
    rows, rng = 1_000_000, np.random.default_rng(0)
    rewards = (rng.random(rows) < 0.001).astype("f4")
    arrays = {
        "observations": rng.standard_normal((rows, 4)),
        "next_observations": rng.standard_normal((rows, 4)),
        "actions": rng.uniform(-1, 1, (rows, 2)),
        "rewards": np.repeat(rewards[::500], 500),
        "terminals": np.zeros(rows, bool),
    }
    assert sum(array.nbytes for array in arrays.values()) > FREE
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            packed = file.create_dataset(name, data=array, compression=1)
            if name in ("rewards", "terminals"):
                assert array.nbytes > RATIO * packed.id.get_storage_size()
    assert len(gemrl.load_dataset(path)) == rows


# HDF5: arrays that were never written to their end


def chunks_of_which_none_was_written(file):
    file.create_dataset("rewards", (ROWS,), "f4", chunks=(10,))


def chunks_of_which_one_was_written(file):
    file.create_dataset("rewards", (ROWS,), "f4", chunks=(10,))[:10] = 1


def chunks_of_which_one_was_packed(file):
    file.create_dataset("rewards", (ROWS,), "f4", chunks=(10,), compression="gzip")[:10] = 1


def rows_that_were_added_and_not_written(file):
    array = file.create_dataset(
        "rewards", data=np.ones(10, "f4"), chunks=(10,), maxshape=(None,), fillvalue=1
    )
    array.resize((ROWS,))


def one_piece_that_was_never_written(file):
    file.create_dataset("rewards", (ROWS,), "f4")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (chunks_of_which_none_was_written, "holds no data"),
        (chunks_of_which_one_was_written, "only 1 of 3 chunks"),
        (chunks_of_which_one_was_packed, "only 1 of 3 chunks"),
        (rows_that_were_added_and_not_written, "only 1 of 3 chunks"),
        (one_piece_that_was_never_written, "holds no data"),
    ],
)
def test_what_was_never_written_is_not_read_as_zeros(edit, words, libver, tmp_path):
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w", libver=libver) as file:
        for name, array in small_arrays().items():
            if name != "rewards":
                file[name] = array
        edit(file)
    message = refusal(path)
    assert f"rewards has shape ({ROWS},)" in message
    assert words in message
    assert "an interrupted writer?" in message


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("rows", [7, 10, ROWS])
def test_chunks_that_do_not_end_with_the_array_are_read(rows, libver, tmp_path):
    with h5py.File(tmp_path / "data.hdf5", "w", libver=libver) as file:
        for name, array in small_arrays().items():
            chunks = (10, *(3 for _ in array.shape[1:]))
            wide = (None,) * array.ndim
            file.create_dataset(name, data=array[:rows] + 1, chunks=chunks, maxshape=wide)
        del file["terminals"], file["timeouts"]
        file["terminals"] = np.zeros(rows)
    assert gemrl.load_dataset(tmp_path / "data.hdf5", outside="clip").rewards.tolist() == [1] * rows


# HDF5: links and other files


def external_link(file, other):
    file["rewards"] = h5py.ExternalLink(str(other), "/rewards")


def soft_link_through_an_external_group(file, other):
    file["elsewhere"] = h5py.ExternalLink(str(other), "/")
    file["rewards"] = h5py.SoftLink("/elsewhere/rewards")


def soft_link_to_itself(file, other):
    file["rewards"] = h5py.SoftLink("/rewards")


def external_storage(file, other):
    raw = other.with_suffix(".raw")
    raw.write_bytes(bytes(4 * ROWS))
    file.create_dataset("rewards", (ROWS,), "f4", external=[(str(raw), 0, 4 * ROWS)])


def virtual_dataset(file, other):
    layout = h5py.VirtualLayout((ROWS,), "f4")
    layout[:] = h5py.VirtualSource(str(other), "rewards", (ROWS,))
    file.create_virtual_dataset("rewards", layout)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (external_link, "leaves the file"),
        (soft_link_through_an_external_group, "leaves the file"),
        (soft_link_to_itself, "does not end"),
        (external_storage, "kept in other files"),
        (virtual_dataset, "kept in other files"),
    ],
)
def test_arrays_outside_the_file_are_refused(edit, words, tmp_path):
    other = write_hdf5(tmp_path / "other.hdf5", small_arrays())
    path = edited(tmp_path / "data.hdf5", lambda file: edit(file, other), ["rewards"])
    message = refusal(path)
    assert "rewards" in message
    assert words in message


def test_links_inside_the_file_are_followed(tmp_path):
    def edit(file):
        file["group/values"] = np.arange(ROWS, dtype=np.float32)
        file["group/again"] = h5py.SoftLink("values")
        file["rewards"] = h5py.SoftLink("/group/again")

    path = edited(tmp_path / "data.hdf5", edit, ["rewards"])
    assert gemrl.load_dataset(path).rewards.tolist() == list(range(ROWS))


def test_a_link_to_nothing_is_a_missing_array(tmp_path):
    def edit(file):
        file["rewards"] = h5py.SoftLink("/nowhere")

    assert "lacks rewards" in refusal(edited(tmp_path / "data.hdf5", edit, ["rewards"]))


def test_links_beside_the_arrays_are_left_alone(tmp_path):
    def edit(file):
        file["infos"] = h5py.ExternalLink("absent.hdf5", "/infos")

    gemrl.load_dataset(edited(tmp_path / "data.hdf5", edit))


# Arrays that are none, in both formats


def write_any(path, name, array):
    arrays = small_arrays() | {name: array}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return path
    return write_hdf5(path, arrays)


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("actions", np.zeros((ROWS, 2), np.complex64), "complex64"),
        ("actions", np.array([[b"left", b"up"]] * ROWS), "S4"),
        ("rewards", np.zeros(ROWS, [("a", "f4"), ("b", "i4")]), "not real numbers"),
        ("observations", np.zeros((ROWS, 8, 8, 3), np.uint8), "images"),
        ("observations", np.zeros((ROWS, 8, 8), np.float32), "images"),
        ("next_observations", np.zeros((ROWS, 3), np.float32), "next_observations"),
        ("actions", np.zeros(ROWS, np.float32), "vector"),
        ("actions", np.zeros((ROWS, 0), np.float32), "actions has no dimensions"),
        ("rewards", np.zeros(ROWS - 1, np.float32), "29 rows where observations has 30"),
        ("rewards", np.zeros((ROWS, 2), np.float32), "one number a row"),
        ("rewards", np.float32(1), "rewards has no rows"),
        ("terminals", np.full(ROWS, np.nan, np.float32), "row 0: nan"),
        ("terminals", np.arange(ROWS) // 29 * 2, "row 29: 2"),
        ("timeouts", (np.arange(ROWS) // 20 * 7).astype(np.uint8).view(bool), "row 20: 7"),
    ],
)
def test_arrays_of_another_kind_are_refused(suffix, name, array, words, tmp_path):
    message = refusal(write_any(tmp_path / f"data.{suffix}", name, array))
    assert name in message
    assert words in message


def test_an_array_without_a_space_is_refused(tmp_path):
    assert "rewards" in refusal(write_any(tmp_path / "data.hdf5", "rewards", h5py.Empty("f4")))


def test_arrays_in_a_group_of_their_own_are_not_found(tmp_path):
    arrays = {f"data/{name}": array for name, array in small_arrays().items()}
    message = refusal(write_hdf5(tmp_path / "data.hdf5", arrays))
    assert "lacks observations" in message
    assert "it has data" in message


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
def test_values_that_are_not_finite_are_read_and_refused_for_training(suffix, tmp_path):
    rewards = np.zeros(ROWS, np.float32)
    rewards[7] = np.nan
    data = gemrl.load_dataset(write_any(tmp_path / f"data.{suffix}", "rewards", rewards))
    with pytest.raises(DataError, match=r"rewards .* row 7\b"):
        data.require_trainable()


@pytest.mark.parametrize("suffix", ["hdf5", "npz"])
@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "<i8", "|u1", "|b1"])
def test_every_type_of_number_is_read_as_float32(suffix, dtype, tmp_path):
    observations = (np.arange(ROWS * 4).reshape(ROWS, 4) % 2).astype(dtype)
    data = gemrl.load_dataset(write_any(tmp_path / f"data.{suffix}", "observations", observations))
    assert data.observations.dtype == np.dtype("=f4")
    assert np.array_equal(data.observations, observations.astype("f4"))


# NPZ


def npy_header(shape, dtype):
    stream = io.BytesIO()
    header = {"shape": shape, "fortran_order": False, "descr": dtype}
    np.lib.format.write_array_header_2_0(stream, header)
    return stream.getvalue()


def write_npz(path, entries):
    """An archive of bytes as they are, and good arrays beside them."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in small_arrays().items():
            stream = io.BytesIO()
            np.save(stream, array)
            archive.writestr(f"{name}.npy", entries.get(name, stream.getvalue()))
    return path


def lying_npz(path, content, size):
    """An archive whose directory gives the first entry another size than it has."""
    write_npz(path, {"observations": content})
    raw = path.read_bytes()
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = raw.index(mark) + place
        raw = raw[:at] + struct.pack("<I", size) + raw[at + 4 :]
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("shape", [(ROWS, 400), (ROWS, 3), (-ROWS, -4), (ROWS, 4, 0), (2**62, 8)])
def test_a_header_that_disagrees_with_the_bytes_is_refused(shape, tmp_path):
    content = npy_header(shape, "<f4") + bytes(ROWS * 16)
    message = refusal(write_npz(tmp_path / "data.npz", {"observations": content}))
    assert "observations claims" in message


def test_an_array_in_fortran_order_is_read_in_its_order(tmp_path):
    observations = np.asfortranarray(np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    data = gemrl.load_dataset(write_any(tmp_path / "data.npz", "observations", observations))
    assert np.array_equal(data.observations, observations)


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"\x93NUMPY\x03\x00" + bytes(200), b"\x93NUMPY\x01\x00\xff\xff{"]
)
def test_entries_that_are_no_arrays_are_refused(content, tmp_path):
    refusal(write_npz(tmp_path / "data.npz", {"observations": content}))


def test_a_changed_byte_fails_the_archives_check(tmp_path):
    path = write_npz(tmp_path / "data.npz", {})
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"\x93NUMPY") + 200] ^= 1
    path.write_bytes(raw)
    assert "CRC" in refusal(path)


# Parquet and CSV


def write_parquet(path, rows=ROWS):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    number = np.arange(rows, dtype=np.float64)
    table = {"s": number, "a": number / rows, "r": number, "e": [f"run {n // 10}" for n in number]}
    parquet.write_table(pa.table(table), path)
    return path


def varint(number):
    """A whole number as Thrift's compact protocol writes it."""
    zigzag, out = number * 2, bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def forged(path, number, other):
    """The footer of a Parquet file with one number replaced by another."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<I", raw[-8:-4])
    footer = raw[-8 - length : -8]
    assert varint(number) in footer
    footer = footer.replace(varint(number), varint(other))
    path.write_bytes(raw[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return path


@pytest.mark.parametrize("claimed", [12_346, 100_000])
def test_a_parquet_file_that_claims_a_few_rows_more_is_refused(claimed, tmp_path):
    path = write_parquet(tmp_path / "data.parquet", rows=12_345)
    refusal(forged(path, 12_345, claimed), LOG)


def write_csv(path):
    lines = [f"{n},{n / ROWS},{n},run {n // 10}" for n in range(ROWS)]
    path.write_text("\n".join(["s,a,r,e", *lines]) + "\n")
    return path


@pytest.mark.parametrize("write", [write_parquet, write_csv])
def test_a_damaged_log_is_read_or_refused_and_nothing_else(write, tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / f"data.{write.__name__.removeprefix('write_')}"
    whole = write(path).read_bytes()
    gemrl.load_dataset(path, columns=LOG)
    rng = np.random.default_rng(0)
    messages = []
    for trial in range(200):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            damaged[place] ^= int(rng.integers(1, 256))
        cut = len(whole) if trial % 2 else int(rng.integers(len(whole)))
        path.write_bytes(damaged[:cut])
        try:
            gemrl.load_dataset(path, columns=LOG)
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all(str(path) in message for message in messages)
