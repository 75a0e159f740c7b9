"""IQL of d3rlpy through its public interface, sampling from its own replay buffer."""

from collections.abc import Callable

import d3rlpy
import numpy as np

from peers import setting as s

EPISODE = 1000


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes n updates. IQL has two critics, whatever the others have."""
    data = s.transitions()
    dataset = d3rlpy.dataset.MDPDataset(
        observations=data.obs,
        actions=data.action,
        rewards=data.reward,
        terminals=1 - data.mask,
        timeouts=(np.arange(1, s.ROWS + 1) % EPISODE == 0).astype(np.float32) * data.mask,
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    encoder = d3rlpy.models.VectorEncoderFactory(list(s.HIDDEN))
    algo = d3rlpy.algos.IQLConfig(
        actor_encoder_factory=encoder,
        critic_encoder_factory=encoder,
        value_encoder_factory=encoder,
        batch_size=s.BATCH,
    ).create(device="cpu:0")
    algo.build_with_dataset(dataset)

    def run(updates: int) -> None:
        for _ in range(updates):
            algo.update(dataset.sample_transition_batch(s.BATCH))

    return run
