"""A run: phases of updates with metrics, checkpoints, health and a way to stop in between."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gemrl.errors import DataError, DivergedError, TrainingError
from gemrl.learn.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from gemrl.learn.devices import Devices
from gemrl.learn.divergence import (
    NOTE,
    check_metrics,
    check_weights,
    explained,
    noted,
)
from gemrl.learn.health import Watch, held_out_metrics, warnings
from gemrl.learn.interrupts import Interrupted, Wish
from gemrl.learn.loggers import Sink
from gemrl.learn.loop import Totals, no_totals, phase_key, run_updates
from gemrl.learn.metrics import append_metrics, cut_metrics
from gemrl.learn.rows import LOG_EVERY, Rows, Windows
from gemrl.learn.spec import Spec, unpack
from gemrl.methods.protocol import MAIN, Batch, Method, MethodConfig, Phase
from gemrl.progress import Report, bar, say

# Seconds between two looks at signals: a call to the compiled loop runs about that long.
_CALL = 1.0
# Losses of the live line, in this order, where the phase has them.
_SHOWN = {
    "critic/loss": "critic",
    "value/loss": "value",
    "actor/loss": "actor",
    "actor/nll": "nll",
    "behavior/nll": "behavior nll",
}


@dataclass(eq=False)
class Run:
    """What a run needs and stays the same through it."""

    method: Method
    config: MethodConfig
    spec: Spec
    rows: Rows
    samples: dict[str, Batch]
    """A few rows of `training` and, where there are any, `held_out`: watched all along."""
    largest_reward: float
    out: Path
    identity: str
    devices: Devices
    wish: Wish
    open_sinks: Callable[[int], list[Sink]]
    """Other places for metrics, of a run that goes on after so many updates."""
    snapshot_every: int | None = None
    """Updates of the main phase between two calls of `keep`; None for no call."""
    keep: Callable[[Any, int], object] = lambda state, done: None
    """Keeps the policy as it is after so many updates of the main phase."""
    quiet: bool = False
    _sinks: list[Sink] = field(default_factory=list)
    _watch: Watch = field(default_factory=Watch)

    def to_the_end(self, resume: bool) -> Any:
        """The state after all phases, from the newest checkpoint where there is one."""
        state, totals, done = self._start(resume)
        try:
            return self._phases(state, totals, done)
        except DivergedError as error:
            error = explained(error, self.out, self.config)
            raise noted(error, self.out) if self.devices.lead else error from None
        except DataError as error:  # Something could not be written.
            good = newest_checkpoint(self.out)
            left = f"the last state saved is {good}" if good else "no state had been saved yet"
            raise TrainingError(f"{error}; {left}: go on with --resume") from error
        finally:
            for sink in self._sinks:
                sink.close()

    def _phases(self, state: Any, totals: Totals | None, done: int) -> Any:
        start = 0
        for phase in self.method.phases(self.config):
            if done < start + phase.steps:
                title = f"{self.method.name} {phase.name}"
                with bar(title, phase.steps, "updates", self.quiet) as report:
                    state = self._phase(state, totals, phase, start, done, report)
                totals, done = None, start + phase.steps
            start += phase.steps
        check_weights(state, "its last phase", done)
        return state

    def _start(self, resume: bool) -> tuple[Any, Totals | None, int]:
        key = jax.random.fold_in(jax.random.key(self.config.seed), 0)
        spec = self.spec
        # Copies, since the loop reuses the state's memory and fresh targets share the critics'.
        state = jax.tree.map(
            jnp.copy, self.method.init(self.config, spec.obs_dim, spec.action_dim, key)
        )
        saved, done = self.devices.together(lambda: self._found(state, resume))
        done = self.devices.agree(done)
        if not self.devices.lead:
            saved = self._saved(state, done)  # The values come from the lead.
        elif done and not self.quiet:
            say(f"resuming {self.out} after {done:,} updates")
        self.devices.together(lambda: self._open_files(done))
        state, totals = self.devices.replicate(saved)
        return state, totals, done

    def _found(self, state: Any, resume: bool) -> tuple[tuple[Any, Totals | None], int]:
        """The newest checkpoint and its number of updates; the fresh state where there is none."""
        found = None
        if resume and self.devices.lead:
            found = load_checkpoint(
                self.out, lambda done: self._saved(state, done), self.identity, say
            )
        return found or ((state, None), 0)

    def _open_files(self, done: int) -> None:
        if self.devices.lead:
            self._sinks = self.open_sinks(done)  # First: one that fails leaves no trace.
            (self.out / NOTE).unlink(missing_ok=True)  # It is tried again.
            cut_metrics(self.out, done)

    def _saved(self, state: Any, done: int) -> tuple[Any, Totals | None]:
        """The structure of a checkpoint: between two lines of metrics it holds their sums."""
        start = 0
        for phase in self.method.phases(self.config):
            if start < done < start + phase.steps and not self._is_line(done):
                return state, self._no_totals(phase, state)
            start += phase.steps
        return state, None

    def _is_line(self, done: int) -> bool:
        """Whether a line of metrics ends here, were it not for a phase's end."""
        return done % LOG_EVERY == 0 or done % self.config.checkpoint_every == 0

    def _no_totals(self, phase: Phase, state: Any) -> Totals:
        # Its shape is all that is asked.
        row = jnp.zeros((1, self.rows.width))
        batch = unpack(row, self.spec.obs_dim, self.spec.action_dim)
        return no_totals(phase.update, state, batch, self.compiled_config)

    @property
    def compiled_config(self) -> MethodConfig:
        """What the compiled program depends on: other seeds and lengths share it."""
        return replace(self.config, seed=0, steps=0)

    @property
    def _limit(self) -> float | None:
        """What Q cannot exceed while training makes sense."""
        return self.config.value_limit(self.largest_reward)

    def _phase(
        self,
        state: Any,
        totals: Totals | None,
        phase: Phase,
        start: int,
        done: int,
        report: Report,
    ) -> Any:
        """The rest of a phase that began after `start` updates, of which `done` in all are done."""
        end = start + phase.steps
        every = self.config.checkpoint_every
        run = run_updates()
        key = phase_key(self.config.seed, phase)
        pace = _Pace(self.devices.count)
        # Made once: to find their shape the update is traced, which takes longer than many updates.
        nothing = self._no_totals(phase, state)
        with Windows(
            self.rows,
            key,
            self.config.batch_size,
            phase.steps,
            self.devices.share(self.config.batch_size),
            self.devices.spread,
        ) as windows:
            while done < end:
                window = windows.at(done - start)
                line = min(end, _after(done, LOG_EVERY), _after(done, every))
                stop = min(line, start + window.stop, done + pace.updates)
                stop = min(stop, start + self._next_snapshot(phase, done - start))
                state, totals = run(
                    state,
                    # A copy, since the loop reuses its memory.
                    totals or self.devices.replicate(jax.tree.map(jnp.copy, nothing)),
                    window.minibatches,
                    window.start,
                    done - start,
                    stop - start,
                    update=phase.update,
                    config=self.compiled_config,
                    obs_dim=self.spec.obs_dim,
                    action_dim=self.spec.action_dim,
                )
                broken = int(totals.broken)
                pace.took(stop - done)
                done, detail = stop, ""
                if done == line or broken >= 0:
                    detail = self._line(state, totals, phase, start, done, broken)
                    totals = None
                if done - start == self._next_snapshot(phase, done - start - 1):
                    self._snapshot(state, phase, done - start)
                if done % every == 0:
                    self._save(state, totals, phase, done)
                report(done - start, detail)
                if self.devices.any(bool(self.wish)):
                    self._stop(state, totals, phase, done)
        return state

    def _line(
        self, state: Any, totals: Totals, phase: Phase, start: int, done: int, broken: int
    ) -> str:
        """Write a line of metrics, and stop a run that makes no sense; the words for a person."""
        previous = max(start, (done - 1) // LOG_EVERY * LOG_EVERY)
        every = self.config.checkpoint_every
        previous = max(previous, (done - 1) // every * every)
        metrics = {name: float(total) / (done - previous) for name, total in totals.sums.items()}
        metrics |= {name: float(value) for name, value in totals.largest.items()}
        where = start + broken if broken >= 0 else -1
        check_metrics(metrics, where, self._limit, phase.name, done)
        for part, batch in self.samples.items():
            found = held_out_metrics(self.method.models(state), batch, self.compiled_config, part)
            metrics |= {name: float(value) for name, value in found.items()}
        line = {"update": done, "phase": phase.name, **metrics}
        self.devices.together(lambda: self.devices.lead and append_metrics(self.out, line))
        for sink in self._sinks:
            sink.log(done, metrics)
        for sentence in self._watch.new(warnings(metrics, getattr(self.config, "components", 1))):
            if not self.quiet:
                say(f"after {done:,} updates: {sentence}")
        return shown(metrics)

    def _next_snapshot(self, phase: Phase, done: int) -> int:
        """Updates of the phase after which the next snapshot is due; its end where none is."""
        if self.snapshot_every is None or phase.name != MAIN:
            return phase.steps
        return min(_after(done, self.snapshot_every), phase.steps)

    def _snapshot(self, state: Any, phase: Phase, done: int) -> None:
        if done < phase.steps:  # The last state becomes the run's own bundle.
            check_weights(state, phase.name, done)
            self.devices.together(lambda: self.devices.lead and self.keep(state, done))

    def _save(self, state: Any, totals: Totals | None, phase: Phase, done: int) -> None:
        check_weights(state, phase.name, done)
        if totals is not None:  # Nobody has looked at them yet.
            largest = {name: float(value) for name, value in totals.largest.items()}
            check_metrics(largest, -1, self._limit, phase.name, done)
        saved = (state, totals)
        self.devices.together(
            lambda: self.devices.lead and save_checkpoint(self.out, saved, done, self.identity)
        )

    def _stop(self, state: Any, totals: Totals | None, phase: Phase, done: int) -> None:
        self._save(state, totals, phase, done)
        raise Interrupted(
            f"stopped by {self.wish.by or 'another process'} after {done:,} updates, which are "
            f"saved in {self.out}; go on with --resume"
        )


class _Pace:
    """How many updates a call runs, so that it takes about a second.

    Processes that compute together must run the same calls, so for them the number is fixed.
    """

    def __init__(self, devices: int) -> None:
        self.updates = 20
        self._fixed = devices > 1
        self._since = time.monotonic()

    def took(self, updates: int) -> None:
        """Note that so many updates were made since the last note."""
        now = time.monotonic()
        if not self._fixed:
            rate = updates / max(now - self._since, 1e-6)
            self.updates = max(1, min(round(rate * _CALL), 2 * self.updates))
        self._since = now


def shown(metrics: Mapping[str, Any]) -> str:
    """The few numbers that matter, the likelihood beside that of held-out rows."""
    words = []
    for key, name in _SHOWN.items():
        if key in metrics:
            words.append(f"{name} {metrics[key]:.3g}")
        held = f"held_out/{key.replace('/', '_')}"
        if key in metrics and held in metrics and key.endswith("nll"):
            words.append(f"held-out {metrics[held]:.3g}")
    return " ".join(words)


def _after(done: int, every: int) -> int:
    """The next multiple of `every`."""
    return (done // every + 1) * every
