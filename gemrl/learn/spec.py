"""How a policy's networks see the world: the observation scaler, action bounds and reward scale.

It is part of the model. A policy cannot be saved or used without it.
"""

import itertools
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int

from gemrl.data.dataset import Dataset
from gemrl.data.shards import ShardedDataset
from gemrl.data.tasks import RewardTransform
from gemrl.errors import BundleError, DataError
from gemrl.methods.protocol import Batch

_INPUTS = ("obs_mean", "obs_std", "action_low", "action_high")


@dataclass(frozen=True, eq=False)
class Spec:
    """Scaler, bounds and reward transform."""

    obs_mean: Float32[np.ndarray, " s"]
    obs_std: Float32[np.ndarray, " s"]
    action_low: Float32[np.ndarray, " a"]
    action_high: Float32[np.ndarray, " a"]
    reward_scale: float
    reward_shift: float

    @property
    def obs_dim(self) -> int:
        """Observation dimensions."""
        return len(self.obs_mean)

    @property
    def action_dim(self) -> int:
        """Action dimensions."""
        return len(self.action_low)

    @property
    def action_middle(self) -> Float32[np.ndarray, " a"]:
        """Centre of the action bounds."""
        return (self.action_low + self.action_high) / 2

    @property
    def action_half(self) -> Float32[np.ndarray, " a"]:
        """Half the width of the action bounds."""
        return (self.action_high - self.action_low) / 2

    def has_inputs_of(self, other: "Spec") -> bool:
        """Whether networks of both see states and actions alike, whatever their rewards."""
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _INPUTS)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers; float32 values survive the round trip exactly."""
        return {
            field.name: value.tolist() if isinstance(value, np.ndarray) else value
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Spec":
        """The reverse of `to_json`, with what is wrong named."""
        try:
            arrays = {name: np.array(values[name], dtype=np.float32) for name in _INPUTS}
            spec = Spec(
                **arrays,
                reward_scale=float(values["reward_scale"]),
                reward_shift=float(values["reward_shift"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(f"manifest: the scaler or bounds cannot be read ({error})") from error
        for name, array in arrays.items():
            if array.ndim != 1 or not np.isfinite(array).all():
                raise BundleError(f"manifest: {name} must be a list of finite numbers")
        if spec.obs_mean.shape != spec.obs_std.shape or not (spec.obs_std > 0).all():
            raise BundleError("manifest: obs_std must be positive and as long as obs_mean")
        if (
            spec.action_low.shape != spec.action_high.shape
            or not (spec.action_low < spec.action_high).all()
        ):
            raise BundleError("manifest: action_low must lie below action_high")
        return spec


def fixed_rewards(dataset: Dataset | ShardedDataset, rewards: RewardTransform) -> RewardTransform:
    """The transform with a number for its scale, where that follows from the data's returns."""
    if rewards.return_range is None:
        return rewards
    returns = dataset.episode_returns
    width = float(returns.max() - returns.min())
    if not width > 0:
        raise DataError(
            f"{dataset.source}: rewards of {dataset.task} are scaled by the range of episode "
            f"returns, and all {len(returns)} episodes return {returns[0]:g}; take more data"
        )
    return RewardTransform(scale=rewards.return_range / width, shift=rewards.shift)


def spec_of(
    data: Dataset | ShardedDataset, rows: Int[np.ndarray, " t"], rewards: RewardTransform
) -> Spec:
    """Scaler of the given rows, and the bounds. A dimension that never changes keeps its scale."""
    mean, std = data.observation_statistics(rows)
    return Spec(
        obs_mean=mean.astype(np.float32),
        obs_std=np.where(std > 1e-6, std, 1.0).astype(np.float32),
        action_low=data.action_low,
        action_high=data.action_high,
        reward_scale=rewards.scale,
        reward_shift=rewards.shift,
    )


def packed(dataset: Dataset) -> Float32[np.ndarray, "t w"]:
    """Transitions as one matrix, so that a minibatch is a single gather."""
    columns = (
        dataset.observations,
        dataset.actions,
        dataset.rewards[:, None],
        dataset.next_observations,
        dataset.masks[:, None],
    )
    return np.concatenate(columns, axis=1, dtype=np.float32)


def scaled(rows: Float32[np.ndarray, "t w"], spec: Spec) -> Float32[np.ndarray, "t w"]:
    """Packed rows as the networks see them, in place."""
    obs, action, reward, next_obs, _ = _columns(rows, spec.obs_dim, spec.action_dim)
    for observation in (obs, next_obs):
        observation -= spec.obs_mean
        observation /= spec.obs_std
    action -= spec.action_middle
    action /= spec.action_half
    np.clip(action, -1, 1, out=action)
    reward *= np.float32(spec.reward_scale)
    reward += np.float32(spec.reward_shift)
    return rows


def row_width(obs_dim: int, action_dim: int) -> int:
    """Numbers in a packed row."""
    return 2 * obs_dim + action_dim + 2


def with_next_actions(
    rows: Float32[np.ndarray, "t w"], following: Float32[np.ndarray, "t w"], spec: Spec
) -> Float32[np.ndarray, "t v"]:
    """Rows with the actions of the rows that follow them at their end."""
    next_actions = _columns(following, spec.obs_dim, spec.action_dim)[1]
    return np.concatenate([rows, next_actions], axis=1)


def rows_after(rows: Int[np.ndarray, " t"], starts: Int[np.ndarray, " e"], total: int) -> Any:
    """The row after each one in its episode; the last row of an episode is followed by itself."""
    ends = np.append(starts[1:], total) - 1
    return np.minimum(rows + 1, ends[np.searchsorted(starts, rows, "right") - 1])


def unpack(rows: Any, obs_dim: int, action_dim: int) -> Batch:
    """Packed rows as a minibatch; NumPy's or JAX's.

    What is beyond a row is the next action or a context, which is always wider than that.
    """
    obs, action, reward, next_obs, mask = _columns(rows, obs_dim, action_dim)
    beyond = rows[:, row_width(obs_dim, action_dim) :]
    next_action = beyond if beyond.shape[1] == action_dim else None
    context = beyond if beyond.shape[1] > action_dim else None
    return Batch(obs, action, reward[:, 0], next_obs, mask[:, 0], next_action, context)


def scale(dataset: Dataset, spec: Spec) -> Batch:
    """The whole dataset as the networks see it."""
    rows = scaled(packed(dataset), spec)
    return jax.tree.map(jnp.asarray, unpack(rows, spec.obs_dim, spec.action_dim))


def _columns(rows: Any, obs_dim: int, action_dim: int) -> list[Any]:
    """Observations, actions, rewards, next observations and masks, as parts of packed rows."""
    edges = np.cumsum([0, obs_dim, action_dim, 1, obs_dim, 1])
    return [rows[:, start:stop] for start, stop in itertools.pairwise(edges.tolist())]
