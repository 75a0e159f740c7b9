"""gemrl's own GEM, through its own training loop."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gemrl import GemConfig
from gemrl.learn.loop import no_totals, run_updates
from gemrl.learn.rows import RowsInMemory, Windows
from gemrl.methods import gem
from gemrl.methods.protocol import Batch
from peers import setting as s

FOREVER = 2**31 - 1  # updates; the phase does not end while it is measured


def config(critics: int) -> GemConfig:
    """The setting that all contenders share."""
    return GemConfig(
        critics=critics,
        components=s.COMPONENTS,
        batch_size=s.BATCH,
        hidden=s.HIDDEN,
        learning_rate=s.LEARNING_RATE,
        discount=s.DISCOUNT,
        expectile=s.EXPECTILE,
        beta=s.BETA,
        weight_cap=s.WEIGHT_CAP,
        polyak=s.POLYAK,
        gate_entropy=s.GATE_ENTROPY,
        log_std_min=s.LOG_STD_MIN,
        log_std_max=s.LOG_STD_MAX,
    )


def make(critics: int) -> Callable[[int], None]:
    """`run(n)` makes n updates of the main phase, as `gemrl.learn.run` does: sampling included."""
    settings, key = config(critics), jax.random.key(0)
    data = s.transitions()
    rows = np.concatenate([column.reshape(s.ROWS, -1) for column in data], axis=1)
    windows = Windows(RowsInMemory(rows), key, s.BATCH, FOREVER)
    # Copies, as in training: the loop reuses the state's memory, and targets share the critics'.
    state = jax.tree.map(jnp.copy, gem.init(settings, s.OBSERVATION, s.ACTION, key))
    sample = Batch(*(jnp.asarray(column[: s.BATCH]) for column in data))
    update_many, totals, done = run_updates(), None, 0

    def run(updates: int) -> None:
        nonlocal state, totals, done
        goal = done + updates
        while done < goal:
            window = windows.at(done)
            stop = min(goal, window.stop)
            state, totals = update_many(
                state,
                totals or no_totals(gem.update, state, sample, settings),
                window.minibatches,
                window.start,
                done,
                stop,
                update=gem.update,
                config=settings,
                obs_dim=s.OBSERVATION,
                action_dim=s.ACTION,
            )
            done = stop
            if done == window.stop:  # Where training would write a line of metrics.
                totals = None
        jax.block_until_ready((state, totals))

    return run
