"""Which rows make a minibatch, and that these are the rows that training gets."""

import h5py
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gemrl
from gemrl.data.shards import open_sharded
from gemrl.data.tasks import RewardTransform
from gemrl.learn.loop import minibatch_rows, phase_key
from gemrl.learn.rows import (
    LOG_EVERY,
    RowsAsRead,
    RowsInMemory,
    Windows,
    window_size,
)
from gemrl.learn.spec import packed, scaled, spec_of
from gemrl.methods import method_of

BATCH = 8


def rows_of(key, first, count, size, batch_size=BATCH):
    return np.asarray(minibatch_rows(key, first, size, count=count, batch_size=batch_size))


# Which rows


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 2**31 - 1),
    first=st.integers(0, 2**30),
    offset=st.integers(0, 15),
)
def test_minibatch_i_is_the_same_wherever_a_window_starts_and_however_long_it_is(
    seed, size, first, offset
):
    key = jax.random.key(seed)
    window = rows_of(key, first, 16, size)
    assert window.shape == (16, BATCH)
    assert window.min() >= 0
    assert window.max() < size
    assert np.array_equal(window[offset : offset + 1], rows_of(key, first + offset, 1, size))
    assert np.array_equal(window[8:], rows_of(key, first + 8, 16, size)[:8])


def test_a_minibatch_of_a_phase_depends_on_the_seed_the_phase_and_its_number_alone():
    gem, bc = (method_of(kind()).phases(kind()) for kind in (gemrl.GemConfig, gemrl.BcConfig))
    behavior, main = gem
    assert [phase.name for phase in (*gem, *bc)] == ["behavior", "main", "main"]

    def drawn(seed, phase):
        return rows_of(phase_key(seed, phase), 3, 4, 10_000)

    assert np.array_equal(drawn(0, main), drawn(0, bc[0]))
    others = [drawn(0, behavior), drawn(1, main), rows_of(phase_key(0, main), 4, 4, 10_000)]
    for other in others:
        assert (other == drawn(0, main)).mean() < 0.1


@pytest.mark.parametrize("size", [7, 100, 1000])
def test_rows_are_drawn_evenly(size):
    rows = rows_of(jax.random.key(5), 0, 4000, size, batch_size=64)
    counts = np.bincount(rows.reshape(-1), minlength=size)
    assert len(counts) == size
    assert stats.chisquare(counts).pvalue > 0.01


def test_rows_of_one_place_of_a_minibatch_and_of_one_after_the_other_are_independent():
    rows = rows_of(jax.random.key(6), 0, 20_000, 4, batch_size=2)
    for pair in (rows, np.stack([rows[:-1, 0], rows[1:, 0]], axis=1)):
        table = np.zeros((4, 4))
        np.add.at(table, tuple(pair.T), 1)
        assert stats.chi2_contingency(table).pvalue > 0.01


def test_a_dataset_of_one_row_is_drawn_from():
    assert not rows_of(jax.random.key(0), 0, 3, 1).any()


# That training gets them


class Places:
    """The two places that rows may lie in."""

    def __init__(self, folder):
        self.data = gemrl.load_dataset(write(folder / "data.hdf5"))
        self.training, _ = self.data.split_episodes(0.2, 0)
        self.spec = spec_of(self.data, self.training, RewardTransform(scale=2.0, shift=-1.0))
        matrix = scaled(packed(self.data.select(self.training)), self.spec)
        on_disk = open_sharded(folder / "data.hdf5", memory=10**6, shard=1500)
        assert len(on_disk.maps) > 3
        self.rows = {
            "memory": RowsInMemory(matrix),
            "disk": RowsAsRead(on_disk, self.training, self.spec),
        }
        self.wanted = self.by_hand()

    def by_hand(self):
        """All training rows as the networks see them, in double precision."""
        data, rows, spec = self.data, self.training, self.spec
        middle, half = (spec.action_low + spec.action_high) / 2, spec.action_half
        columns = [
            (data.observations[rows].astype(float) - spec.obs_mean) / spec.obs_std,
            (data.actions[rows].astype(float) - middle) / half,
            2.0 * data.rewards[rows, None].astype(float) - 1.0,
            (data.next_observations[rows].astype(float) - spec.obs_mean) / spec.obs_std,
            data.masks[rows, None].astype(float),
        ]
        return np.concatenate(columns, axis=1)


def write(path, rows=300):
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(3, 2, (rows, 3)).astype(np.float32)
        file["next_observations"] = rng.normal(3, 2, (rows, 3)).astype(np.float32)
        file["actions"] = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
        file["rewards"] = rng.normal(size=rows).astype(np.float32)
        file["terminals"] = rng.random(rows) < 0.05
        file["timeouts"] = np.arange(1, rows + 1) % 20 == 0
    return path


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMRL_HOME", str(folder / "home"))
        return Places(folder)


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_rows_are_those_asked_for_as_the_networks_see_them(place, places):
    rows = places.rows[place]
    assert len(rows) == len(places.training)
    assert rows.width == places.wanted.shape[1] == 10
    asked = np.random.default_rng(2).integers(len(rows), size=1000)
    found = rows.gather(asked)
    assert found.dtype == np.float32
    assert found == pytest.approx(places.wanted[asked], rel=1e-5, abs=1e-5)
    assert np.array_equal(found, places.rows["memory"].gather(asked))


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("steps", [[0], [0, 1, 499, 500, 999, 1000], [777, 1200], [1100, 3]])
def test_windows_hold_the_rows_that_minibatch_rows_names_from_wherever_a_run_goes_on(
    place, steps, places
):
    rows, key = places.rows[place], jax.random.key(3)
    with Windows(rows, key, BATCH, 1300) as windows:
        for step in steps:
            window = windows.at(step)
            assert window.start <= step < window.stop
            named = rows_of(key, step, 1, len(rows))[0]
            found = np.asarray(window.minibatches[step - window.start])
            assert np.array_equal(found, rows.gather(named))
            assert found == pytest.approx(places.wanted[named], rel=1e-5, abs=1e-5)


def test_the_same_window_is_not_gathered_again(places):
    with Windows(places.rows["memory"], jax.random.key(3), BATCH, 1300) as windows:
        assert windows.at(10) is windows.at(499)
        assert windows.at(500) is not windows.at(499)


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_parts_of_a_minibatch_are_together_the_whole(place, places):
    rows, key = places.rows[place], jax.random.key(4)

    def minibatches(part):
        with Windows(rows, key, BATCH, 600, part) as windows:
            return np.asarray(windows.at(0).minibatches)

    parts = [minibatches(slice(0, 4)), minibatches(slice(4, 8))]
    assert np.array_equal(np.concatenate(parts, axis=1), minibatches(slice(None)))


def test_a_row_that_cannot_be_read_is_an_error_of_training_and_not_of_a_thread(places):
    class Unreadable(RowsInMemory):
        def gather(self, rows):
            raise OSError("the disk is gone")

    rows = Unreadable(places.rows["memory"].matrix)
    with (
        Windows(rows, jax.random.key(0), BATCH, 600) as windows,
        pytest.raises(OSError, match="the disk is gone"),
    ):
        windows.at(0)


@settings(max_examples=200, deadline=None)
@given(batch_size=st.integers(1, 10**6), width=st.integers(4, 10**4))
def test_a_window_is_small_and_never_longer_than_what_lies_between_two_lines_of_metrics(
    batch_size, width
):
    count = window_size(batch_size, width)
    assert 1 <= count <= LOG_EVERY
    assert count == 1 or 4 * count * batch_size * width <= 32 * 2**20
