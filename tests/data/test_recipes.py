"""Regenerated Maze2D data: what D4RL's recipe promises, seen in the arrays alone."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemrl
from gemrl.data.recipes import make_dataset
from gemrl.data.recipes.maze2d import make_maze2d
from gemrl.data.storage import atomic_path
from gemrl.data.tasks import task_named
from gemrl.envs.grid import Maze, shortest_paths
from gemrl.errors import DataError

UMAZE = "maze2d-umaze-v1"


def in_wall(task, positions):
    walls = np.array([[cell == "#" for cell in row] for row in task.maze.cells])
    index = np.floor(np.asarray(positions) + 0.7).astype(int)
    return walls[index[:, 0], index[:, 1]]


def episodes_of(arrays):
    """Slices of rows between timeouts; the last one, which was cut off, left out."""
    ends = np.flatnonzero(arrays["timeouts"])
    return [slice(a, b + 1) for a, b in zip(np.append(-1, ends[:-1]) + 1, ends, strict=True)]


@pytest.fixture(scope="module", params=["maze2d-medium-v1", "maze2d-large-v1"])
def larger_maze(request):
    task = task_named(request.param)
    return task, make_maze2d(task, 3000, seed=1)


def test_the_same_seed_gives_the_same_arrays_and_another_seed_others():
    task = task_named(UMAZE)
    first, again, other = (make_maze2d(task, 500, seed=seed) for seed in (3, 3, 4))
    assert set(first) == {
        "observations",
        "actions",
        "rewards",
        "next_observations",
        "terminals",
        "timeouts",
    }
    for name, array in first.items():
        assert len(array) == 500
        assert array.dtype == again[name].dtype
        assert np.array_equal(array, again[name])
    for name in ("observations", "actions", "next_observations"):
        assert not np.array_equal(first[name], other[name])


def test_no_observation_lies_inside_a_wall(maze_arrays):
    assert not in_wall(task_named(UMAZE), maze_arrays["observations"][:, :2]).any()
    assert not in_wall(task_named(UMAZE), maze_arrays["next_observations"][:, :2]).any()


def test_no_observation_lies_inside_a_wall_of_the_larger_mazes(larger_maze):
    task, arrays = larger_maze
    assert not in_wall(task, arrays["observations"][:, :2]).any()


def test_the_path_visits_every_free_cell(maze_arrays):
    cells = np.rint(maze_arrays["observations"][:, :2] + 0.2).astype(int)
    free = {
        (i, j)
        for i, row in enumerate(task_named(UMAZE).maze.cells)
        for j, cell in enumerate(row)
        if cell != "#"
    }
    assert {tuple(cell) for cell in cells} == free


def test_actions_lie_within_one_and_about_a_third_of_their_components_at_it(maze_arrays):
    actions = maze_arrays["actions"]
    assert np.abs(actions).max() == 1
    assert 0.25 <= (np.abs(actions) == 1).mean() <= 0.40


def test_rewards_are_the_goal_test_on_the_current_observation_and_not_the_next(maze_arrays):
    goal = np.array([1.0, 1.0])

    def at_goal(observations):
        distance = np.linalg.norm(observations[:, :2].astype(np.float64) - goal, axis=1)
        return (distance <= 0.5).astype(np.float32)

    assert np.array_equal(maze_arrays["rewards"], at_goal(maze_arrays["observations"]))
    assert not np.array_equal(maze_arrays["rewards"], at_goal(maze_arrays["next_observations"]))
    assert 0 < maze_arrays["rewards"].mean() < 1


def test_no_row_is_terminal(maze_arrays):
    assert maze_arrays["terminals"].dtype == bool
    assert not maze_arrays["terminals"].any()


def test_timeouts_are_exactly_where_the_target_is_reached(maze_arrays):
    positions = maze_arrays["observations"][:, :2].astype(np.float64)
    episodes = episodes_of(maze_arrays)
    assert len(episodes) > 50
    targets = set()
    for rows in episodes:
        target = np.rint(positions[rows][-1] + 0.2)
        distance = np.linalg.norm(positions[rows] - (target - 0.2), axis=1)
        assert distance[-1] < 0.1 + 1e-6
        assert (distance[:-1] > 0.1 - 1e-6).all()
        targets.add(tuple(target))
    assert len(targets) == 7


def test_every_episode_moves(maze_arrays):
    before, after = maze_arrays["observations"][:, :2], maze_arrays["next_observations"][:, :2]
    for rows in episodes_of(maze_arrays):
        assert np.linalg.norm(after[rows][-1] - before[rows][0]) > 0


def test_the_whole_data_is_one_endless_path(maze_arrays):
    assert np.array_equal(
        maze_arrays["next_observations"][:-1],
        maze_arrays["observations"][1:],
    )


def test_make_dataset_writes_a_file_that_says_what_it_is(tmp_path):
    task = task_named(UMAZE)
    out = tmp_path / "new" / "folder" / "data.hdf5"
    heard = []
    make_dataset(task, 1500, 5, out, heard.append)
    assert heard == [1000, 1500]
    data = gemrl.load_dataset(out)
    assert (data.task, data.origin) == (UMAZE, "regenerated")
    assert data.action_low.tolist() == [-1, -1]
    assert data.action_high.tolist() == [1, 1]
    arrays = make_maze2d(task, 1500, 5)
    assert data.fingerprint == gemrl.from_arrays(**arrays).fingerprint
    assert [path.name for path in out.parent.iterdir()] == ["data.hdf5"]
    with h5py.File(out) as file:
        assert '"seed": 5' in file.attrs["gemrl_recipe"]


def test_a_failed_write_leaves_no_file_and_no_temporary_behind(tmp_path):
    def fail(done):
        raise RuntimeError(f"stopped at {done}")

    with pytest.raises(RuntimeError, match="stopped at 1000"):
        make_dataset(task_named(UMAZE), 1200, 0, tmp_path / "data.hdf5", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_halfway_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "data.hdf5"
    path.write_text("old")

    def write_half():
        with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
            file.create_dataset("observations", data=np.zeros((3, 4)))
            raise RuntimeError("the disk went away")

    with pytest.raises(RuntimeError, match="the disk went away"):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_place_of_the_file_is_left_alone(tmp_path):
    out = tmp_path / "data.hdf5"
    out.mkdir()
    with pytest.raises((DataError, IsADirectoryError), match=r"data\.hdf5"):
        make_dataset(task_named(UMAZE), 10, 0, out)
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_in_the_place_of_a_folder_is_an_error_that_names_the_path(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError, match=r"taken/data\.hdf5"):
        make_dataset(task_named(UMAZE), 10, 0, tmp_path / "taken" / "data.hdf5")


@st.composite
def mazes(draw):
    """A small maze with at least one free cell, walled or not, connected or not."""
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    rows = st.lists(st.sampled_from("## "), min_size=width, max_size=width).map("".join)
    cells = draw(st.lists(rows, min_size=height, max_size=height))
    free = [(i, j) for i in range(height) for j in range(width) if cells[i][j] == " "]
    if not free:
        cells[0] = " " + cells[0][1:]
        free = [(0, 0)]
    return Maze(tuple(cells), goal=(0.0, 0.0), corner=(0.0, 0.0)), draw(st.sampled_from(free)), free


def path_lengths(maze, target, free):
    """Lengths of shortest paths by relaxation until nothing changes."""
    lengths = dict.fromkeys(free, np.inf) | {target: 0}
    changed = True
    while changed:
        changed = False
        for i, j in free:
            around = ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1))
            best = 1 + min((lengths.get(cell, np.inf) for cell in around), default=np.inf)
            if best < lengths[i, j]:
                lengths[i, j], changed = best, True
    return lengths


@given(mazes())
@settings(max_examples=150, deadline=None)
def test_following_shortest_paths_takes_as_many_steps_as_the_shortest_path_has(case):
    maze, target, free = case
    lengths = path_lengths(maze, target, free)
    onward = shortest_paths(maze, target)
    assert set(onward) == {cell for cell in free if np.isfinite(lengths[cell])}
    assert onward[target] == target
    for cell, following in onward.items():
        if cell != target:
            assert abs(cell[0] - following[0]) + abs(cell[1] - following[1]) == 1
            assert lengths[following] == lengths[cell] - 1
