"""How fast every method trains, in updates a second, and beside GEM in the same run.

    python benchmarks/methods.py [--quick] [--markdown]

Observation 11 and action 3 as Hopper's, made-up data, each method with its own settings for
hopper-medium-expert: networks, minibatches and ensembles are what its paper or this project gives
it, so an update is not the same work. All methods live in one process and take turns; a rate over
GEM's is taken within a round, and the table has the medians.

The last line is a JSON object: each method's updates a second and its rate over GEM's
(`NAME_over_gem`), and the share of the machine that other processes took.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from peers.contenders import busy_seconds

import gemrl
from gemrl.learn.compiled import kept_programs
from gemrl.learn.loop import no_totals, phase_key, run_updates
from gemrl.learn.rows import Windows
from gemrl.learn.spec import spec_of, unpack
from gemrl.learn.train import rows_of
from gemrl.methods import METHODS, default_config
from gemrl.methods.protocol import MAIN

TASK = "hopper-medium-expert-v2"
OBSERVATION, ACTION, ROWS, EPISODE = 11, 3, 100_000, 500
FOREVER = 2**31 - 1  # updates; the phase does not end while it is measured
QUIET = 0.03  # of the machine's cores taken by others


def made_up_data() -> gemrl.Dataset:
    """Episodes of one length with nothing to learn."""
    rng = np.random.default_rng(0)
    return gemrl.from_arrays(
        rng.normal(size=(ROWS, OBSERVATION)),
        rng.uniform(-1, 1, (ROWS, ACTION)),
        rng.normal(size=ROWS),
        np.zeros(ROWS, bool),
        np.arange(1, ROWS + 1) % EPISODE == 0,
        action_low=-1.0,
        action_high=1.0,
    )


def trainer(name: str, data: gemrl.Dataset) -> Callable[[int], None]:
    """`run(n)` makes n updates of a method's main phase, gathering minibatches as training does."""
    config, method = default_config(name, TASK), METHODS[name]
    phase = next(phase for phase in method.phases(config) if phase.name == MAIN)
    numbers = np.arange(len(data))
    spec = spec_of(data, numbers, gemrl.data.tasks.RewardTransform())
    rows = rows_of(data, numbers, spec, method, config)
    windows = Windows(rows, phase_key(0, phase), config.batch_size, FOREVER)
    # Copies, as in training: the loop reuses the state's memory, and targets share the critics'.
    make = jax.jit(lambda key: method.init(config, OBSERVATION, ACTION, key))
    state = jax.tree.map(jnp.copy, make(jax.random.key(0)))
    sample = unpack(jnp.zeros((1, rows.width)), OBSERVATION, ACTION)
    totals = no_totals(phase.update, state, sample, config)
    done = 0

    def run(updates: int) -> None:
        nonlocal state, totals, done
        goal = done + updates
        while done < goal:
            window = windows.at(done)
            stop = min(goal, window.stop)
            state, totals = run_updates()(
                state,
                totals,
                window.minibatches,
                window.start,
                done,
                stop,
                update=phase.update,
                config=config,
                obs_dim=OBSERVATION,
                action_dim=ACTION,
            )
            done = stop
        jax.block_until_ready(state)

    return run


def measured(names: list[str], rounds: int, seconds: float) -> tuple[dict[str, list[float]], float]:
    """Each method's rate in each round, and the share of the machine that others took."""
    data, runs, count = made_up_data(), {}, {}
    for name in names:
        print(f"{name} compiles", file=sys.stderr)
        runs[name] = trainer(name, data)
        runs[name](2)
        start = time.perf_counter()
        runs[name](5)
        count[name] = max(3, round(5 * seconds / (time.perf_counter() - start)))
    rates: dict[str, list[float]] = {name: [] for name in names}
    busy, own, began = busy_seconds(), time.process_time(), time.perf_counter()
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name](1)  # A part that is not counted: caches are another's.
            start = time.perf_counter()
            runs[name](count[name])
            rates[name].append(count[name] / (time.perf_counter() - start))
    others = busy_seconds() - busy - (time.process_time() - own)
    cores = len(os.sched_getaffinity(0))
    return rates, max(0.0, others / (cores * (time.perf_counter() - began)))


def main() -> None:
    """Measure, print a table and the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--markdown", action="store_true", help="a table for a Markdown page")
    args = parser.parse_args()
    rounds, seconds = (3, 0.7) if args.quick else (7, 2.0)
    with kept_programs():
        rates, others = measured(list(METHODS), rounds, seconds)
    found: dict[str, float] = {}
    lines = []
    for name, mine in rates.items():
        config = default_config(name, TASK)
        over = statistics.median(a / b for a, b in zip(mine, rates["gem"], strict=True))
        found[name] = round(statistics.median(mine), 1)
        found[f"{name}_over_gem"] = round(over, 3)
        critics = str(getattr(config, "critics", "–"))
        widths = "×".join(map(str, config.hidden))
        lines.append((name, f"{found[name]:.1f}", f"{over:.2f}", str(config.batch_size), critics,
                      widths))  # fmt: skip
    header = ("method", "updates/s", "over GEM's", "minibatch", "critics", "hidden")
    if args.markdown:
        marks = ("---", *["---:"] * (len(header) - 1))
        print("\n".join(f"| {' | '.join(cells)} |" for cells in (header, marks, *lines)))
    else:
        for cells in (header, *lines):
            print("".join(cell.rjust(12) for cell in cells))
    print(f"\nOther processes took {others:.1%} of the machine.\n")
    if others > QUIET:
        print("That is too much for these numbers to mean anything: run it on a quiet machine.\n")
    print(json.dumps(found | {"others_share": round(others, 3)}))


if __name__ == "__main__":
    main()
