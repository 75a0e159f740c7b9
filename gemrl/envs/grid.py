"""Mazes as grids of cells: where a cell lies, what is a wall, the shortest way."""

from collections import deque
from dataclasses import dataclass

import numpy as np

Cell = tuple[int, int]


@dataclass(frozen=True)
class Maze:
    """A maze of square cells, `#` being walls, and where it lies in an observation's first two
    dimensions.
    """

    cells: tuple[str, ...]
    goal: tuple[float, float]
    """The evaluation goal, a point in observation terms."""
    corner: tuple[float, float]
    """Centre of cell (0, 0) in observation terms."""
    cell_size: float = 1.0
    rows_along_x: bool = True
    """Whether x counts the rows of `cells` and y the columns, or the other way round."""
    start: Cell | None = None
    """Cell in which every evaluation starts; any free one where there is none."""

    @property
    def walls(self) -> np.ndarray:
        """Boolean grid of walls."""
        return np.array([[cell == "#" for cell in row] for row in self.cells])

    def centre(self, cell: Cell) -> np.ndarray:
        """Centre of a cell in observation terms."""
        along = np.array(cell if self.rows_along_x else cell[::-1], dtype=np.float64)
        return np.array(self.corner) + self.cell_size * along

    def cell_at(self, positions: np.ndarray) -> np.ndarray:
        """Row and column [..., 2] of the cell around each position [..., 2], inside or not."""
        away = (np.asarray(positions) - np.array(self.corner)) / self.cell_size
        index = np.floor(away + 0.5).astype(int)
        return index if self.rows_along_x else index[..., ::-1]


def free_cells(maze: Maze) -> list[Cell]:
    """Cells that are not walls, row by row."""
    return [(i, j) for i, row in enumerate(maze.cells) for j, cell in enumerate(row) if cell != "#"]


def inside_wall(maze: Maze, positions: np.ndarray) -> np.ndarray:
    """For each position [..., 2]: does the point lie in a wall or beyond the maze?"""
    walls, index = maze.walls, maze.cell_at(positions)
    beyond = (index < 0).any(axis=-1) | (index >= walls.shape).any(axis=-1)
    clipped = np.clip(index, 0, np.array(walls.shape) - 1)
    return beyond | walls[clipped[..., 0], clipped[..., 1]]


def shortest_paths(maze: Maze, target: Cell) -> dict[Cell, Cell]:
    """For each free cell, the next cell on a shortest path to the target (itself at the target)."""
    free = set(free_cells(maze))
    onward = {target: target}
    queue = deque([target])
    while queue:
        i, j = queue.popleft()
        for cell in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            if cell in free and cell not in onward:
                onward[cell] = (i, j)
                queue.append(cell)
    return onward
