"""A policy with all that serving it needs: queue, gates, log, shadow, counts."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import gemrl
from gemrl.data.dataset import Dataset
from gemrl.decide.backend import Shape
from gemrl.decide.gates import FILE, Gates
from gemrl.decide.guard import Guard
from gemrl.decide.history import seeing_contexts
from gemrl.decide.knobs import WORDS, Knobs
from gemrl.decide.policy import Policy
from gemrl.decide.search import Deadlines
from gemrl.deploy.serve.answers import answer
from gemrl.deploy.serve.config import ServeConfig
from gemrl.deploy.serve.decider import Decider, Job, Outcome
from gemrl.deploy.serve.engine import Engine
from gemrl.deploy.serve.histories import Histories
from gemrl.deploy.serve.lent import Lent
from gemrl.deploy.serve.live import Live
from gemrl.deploy.serve.log import DecisionLog, LogConfig
from gemrl.deploy.serve.metrics import Metrics, Values
from gemrl.deploy.serve.requests import Ask, Reader
from gemrl.deploy.serve.shadow import Shadow
from gemrl.deploy.serve.waiting import Waiting
from gemrl.errors import ConfigError, OverloadError, RequestError
from gemrl.learn.loop import usable_cores

if TYPE_CHECKING:
    from gemrl.decide.fast.backend import FastBackend

ALPHA = 0.01


class Service:
    """Takes requests as plain values and gives answers as plain values."""

    def __init__(
        self,
        policy: Policy,
        config: ServeConfig,
        *,
        knobs: Knobs | None = None,
        profiles: dict[str, Knobs] | None = None,
        run: Path | None = None,
        behavior: Path | None = None,
        gates: Gates | None = None,
        shadow: Policy | None = None,
        states: Dataset | None = None,
        log: LogConfig | None = None,
    ) -> None:
        """`knobs` are the defaults of requests; `states` is a dataset whose states the page shows.

        Gates are those given, else those of the run folder. `run` and `behavior`, which gave its
        density to a policy without one, are told in the log, so that it can be decided again.
        A policy that looks back is served with the history of each episode that requests name.
        """
        self.spec, self.context = policy.spec, policy.context
        histories = None if policy.context is None else Histories(policy)
        self.states = _checked_states(states, policy)
        if policy.context is not None:
            _require_for_looking_back(policy, config, log)
        if shadow is not None and _looks_back(shadow) != _looks_back(policy):
            raise ConfigError(
                f"--shadow: its context has {_looks_back(shadow)} steps, and that of the policy "
                f"that is served {_looks_back(policy)}"
            )
        self.policy = policy = seeing_contexts(policy)
        self.config = config
        self.knobs = policy.default_knobs if knobs is None else knobs
        self.profiles = profiles or {}
        for name, one in {"default": self.knobs, **self.profiles}.items():
            policy.require_models(one)
            if one.n > config.max_candidates:
                raise ConfigError(
                    f"the {name} knobs have n = {one.n}, above --max-candidates "
                    f"{config.max_candidates}"
                )
        self.alpha = ALPHA if config.alpha is None else config.alpha
        self.gates, self.guard = _gates(policy, config, self.alpha, run, gates)
        if policy.backend.name == "fast":
            # Decisions and answers must not take turns on the same core.
            backend = cast("FastBackend", policy.backend)
            backend.threads = config.threads or max(1, usable_cores() - 1)
        elif config.threads is not None:
            raise ConfigError(
                "--threads is for the fast backend, and this policy is decided by "
                f"{policy.backend.name}: leave it out"
            )
        decider = Decider(policy, self.gates, self.alpha, self.guard)
        self.reader = Reader(
            self.spec.obs_dim,
            self.knobs,
            self.profiles,
            config.limits,
            config.deadline_ms,
            None if decider.shares_calls else frozenset(map(Shape.of, self._warm())),
            policy.require_models,
            histories,
        )
        self.engine = Engine(
            decider,
            queue=config.queue,
            batch=config.batch,
            wait_ms=config.wait_ms,
            overload=config.overload,
            done=self._done,
        )
        self.live = Live(policy)
        self.shadow = None
        if shadow is not None:
            for one in (self.knobs, *self.profiles.values()):
                shadow.require_models(one)
            self.shadow = Shadow(seeing_contexts(shadow), policy, config.shadow_tolerance)
        self.log = None if log is None else DecisionLog(log, policy, self._about(run, behavior))
        self.metrics = Metrics(self._counts, self._levels)
        self.connections = 0
        self.in_progress = 0
        self.lent = 0
        """Connections that the deciding thread has, as far as the event loop knows."""
        self.ready = False
        self.draining = False

    def warm_up(self) -> None:
        """Compile all that a request can ask for, and measure what decisions cost."""
        decider = self.engine.decider
        decider.warm_up(self._warm(), min(self.config.batch, 4), self.config.max_candidates)
        if self.shadow is not None:
            self.shadow.warm_up(self._warm())
        largest = max(knobs.n for knobs in self._warm())
        if decider.shares_calls:
            largest = max(largest, min(1024, self.config.max_candidates))

        def decide(rows: int, count: int) -> None:
            found = [knobs for knobs in self._warm() if knobs.n == count]
            one = found[0] if found else dataclasses.replace(self.knobs, n=count)
            decider.decide([Job(self._trial(one))] * rows, Deadlines(np.full(rows, np.inf)))

        self.engine.costs.measure(decide, largest)

    def _trial(self, knobs: Knobs) -> Ask:
        """A request at the data's mean state, to time decisions with."""
        return Ask(
            rows=self.policy.spec.obs_mean[None],
            single=True,
            knobs=knobs,
            seed=0,
            t=0,
            episode=None,
            counted=False,
            deadline_ms=None,
            detail=True,
            source="http",
            arrived=time.perf_counter(),
            history=None,
            obs=self.spec.obs_mean,
        )

    async def act(self, values: Any, source: str, arrived: float) -> tuple[Outcome, dict[str, Any]]:
        """The outcome of a request, and its answer."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def decided(outcome: Outcome | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Outcome):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        waiting = self.begin(values, source, arrived, decided)
        self.in_progress += 1
        try:
            outcome = await future
            if outcome.is_large:
                return outcome, await asyncio.to_thread(self.answer, outcome)
            return outcome, self.answer(outcome)
        except asyncio.CancelledError:
            if future.cancelled():  # Else it was decided already.
                self.leave(waiting)
            raise
        finally:
            self.in_progress -= 1

    def begin(
        self,
        values: Any,
        source: str,
        arrived: float,
        decided: Callable[[Outcome | Exception], None],
        lent: Lent | None = None,
    ) -> Waiting:
        """Put a request into the queue; `decided` hears of its end: see `Engine.submit`."""
        if self.draining or not self.ready:
            why = "stopping" if self.draining else "starting: its programs are being compiled"
            raise OverloadError(f"the server is {why}; ask again later", retry_after=5)
        ask = self.reader.read(values, source, arrived)

        def ended(outcome: Outcome | Exception) -> None:
            if not isinstance(outcome, Outcome):
                self.reader.give_back(ask)
            else:
                self.reader.remember(ask, outcome.decisions[0].action)
            decided(outcome)

        try:
            return self.engine.submit(ask, ended, lent)
        except OverloadError:
            self.reader.give_back(ask)
            raise

    def leave(self, waiting: Waiting) -> None:
        """Whoever asked has gone: it need not be decided."""
        waiting.gone = True
        self.reader.give_back(waiting.ask)

    def answer(self, outcome: Outcome) -> dict[str, Any]:
        """What is told of an outcome."""
        return answer(outcome, self.policy)

    def state(self, row: int | None) -> dict[str, Any]:
        """A state of the dataset: the given row, or a random one."""
        if self.states is None:
            raise LookupError("this server has no dataset: start it with --states DATASET")
        data, count = self.states, len(self.states.observations)
        row = int(np.random.default_rng().integers(count)) if row is None else row
        if not 0 <= row < count:
            raise RequestError(f"row = {row}: must be from 0 to {count - 1}")
        episode = int(np.searchsorted(data.episode_starts, row, "right") - 1)
        return {
            "row": row,
            "count": count,
            "observation": data.observations[row].tolist(),
            "action": data.actions[row].tolist(),
            "episode": episode,
            "t": row - int(data.episode_starts[episode]),
        }

    def recent(self, after: int) -> dict[str, Any]:
        """The decisions after a number, with counts."""
        shadow = self.shadow
        counts = self.metrics.counts | {
            "shed": sum(self.engine.shed.values()),
            "shadow_compared": 0 if shadow is None else shadow.compared,
            "shadow_different": 0 if shadow is None else shadow.different,
        }
        return self.live.since(after) | {"counts": counts, "waiting": self.engine.waiting}

    def metadata(self) -> dict[str, Any]:
        """What a client can know before it asks."""
        spec, config, manifest = self.spec, self.config, self.policy.bundle.manifest
        guard = self.guard
        return {
            "name": "gemrl",
            "version": gemrl.__version__,
            "digest": self.policy.digest,
            "method": self.policy.method,
            "density": manifest.get("density"),
            "task": manifest["task"],
            "backend": self.policy.backend.name,
            "observation_size": spec.obs_dim,
            "action_size": spec.action_dim,
            "action_low": spec.action_low.tolist(),
            "action_high": spec.action_high.tolist(),
            "obs_mean": spec.obs_mean.tolist(),
            "obs_std": spec.obs_std.tolist(),
            "history": None
            if self.context is None
            else {"steps": self.context.length, "target_return": self.context.target_return},
            "knobs": self.knobs.to_json(),
            "words": {name: list(words) for name, words in WORDS.items()},
            "profiles": {name: knobs.to_json() for name, knobs in self.profiles.items()},
            "limits": dataclasses.asdict(config.limits),
            "gates": None
            if self.gates is None
            else {
                "names": list(self.gates.names),
                "alpha": self.alpha,
                "act": guard is not None,
                "ladder": [] if guard is None else list(guard.ladder),
            },
            "shadow": None if self.shadow is None else {"digest": self.shadow.policy.digest},
            "overload": config.overload,
            "token": config.token is not None,
            "compiled": None
            if self.reader.compiled is None
            else [shape._asdict() for shape in sorted(self.reader.compiled)],
            "states": None
            if self.states is None
            else {"source": Path(self.states.source).name, "count": len(self.states.observations)},
        }

    def close(self) -> None:
        """End the threads, once no request is left."""
        self.engine.stop()
        if self.shadow is not None:
            self.shadow.close()
        if self.log is not None:
            self.log.close()

    def _warm(self) -> list[Knobs]:
        """Every kind of knobs that is compiled before the server says ready."""
        given = [self.knobs, *self.profiles.values()]
        # Where a profile draws, a request may ask for the best as well.
        given += [dataclasses.replace(one, temperature=0.0) for one in given]
        anchors = [
            dataclasses.replace(one, n=0, anchor="mode" if one.anchor == "none" else one.anchor)
            for one in given
        ]
        smaller = []
        if self.guard is not None:
            small = self.guard.smaller_n
            smaller = [dataclasses.replace(one, n=min(one.n, small)) for one in given]
        return list(dict.fromkeys([*given, *anchors, *smaller]))

    def _done(self, outcome: Outcome) -> None:
        self.metrics.decided(outcome)
        if not outcome.ask.detail:  # Somebody's trial.
            self.live.keep(outcome)
        if self.log is not None:
            self.log.write(outcome)
        if self.shadow is not None:
            self.shadow.compare(outcome)

    def _about(self, run: Path | None, behavior: Path | None) -> dict[str, Any]:
        """What the log's header says of this server."""
        guard = self.guard
        return {
            "gemrl": gemrl.__version__,
            "run": None if run is None else str(run.resolve()),
            "behavior": None if behavior is None else str(behavior.resolve()),
            "started": time.time(),
            "history": None if self.context is None else self.context.length,
            "gates": None if self.gates is None else {"alpha": self.alpha},
            "guard": None
            if guard is None
            else {
                "alpha": guard.alpha,
                "ladder": list(guard.ladder),
                "on_novelty": guard.on_novelty,
                "smaller_n": guard.smaller_n,
            },
        }

    def _counts(self) -> Values:
        counts: Values = {
            "shed": {reason: float(count) for reason, count in self.engine.shed.items()},
            "batches": {"": float(self.engine.batches)},
            "episodes_forgotten": {"": float(self.reader.forgotten)},
        }
        if self.log is not None:
            counts["log_lines"] = {"": float(self.log.written)}
            counts["log_lost"] = {"": float(self.log.lost)}
        if self.shadow is not None:
            counts["shadow"] = {
                name: float(getattr(self.shadow, name))
                for name in ("compared", "different", "left_out", "failed")
            }
        return counts

    def _levels(self) -> Values:
        return {
            "waiting_observations": {"": float(self.engine.waiting)},
            "requests_in_progress": {"": float(self.in_progress)},
            "connections": {"": float(self.connections)},
            "ready": {"": float(self.ready and not self.draining)},
            "cost_factor": {"": float(self.engine.costs.factor)},
            "loop_lag_seconds": {"": float(self.engine.lag)},
            "shadow_largest_difference": {
                "": 0.0 if self.shadow is None else float(self.shadow.largest)
            },
        }


def _gates(
    policy: Policy, config: ServeConfig, alpha: float, run: Path | None, gates: Gates | None
) -> tuple[Gates | None, Guard | None]:
    """The gates that judge, and the guard where they may act."""
    if config.ladder is not None and config.gates != "act":
        raise ConfigError("--ladder says what acting gates do: it needs --gates act")
    if config.ladder is not None and "controller" in config.ladder:
        raise ConfigError("--ladder has 'controller': a server knows no controller of yours")
    found = None if config.gates == "off" else gates
    if config.gates != "off" and found is None and run is not None and (run / FILE).exists():
        found = Gates.load(run, policy)
    if found is None:
        if config.alpha is not None:
            raise ConfigError("--alpha is the gates' rate, and this server has no gates")
        if config.gates in ("off", "auto"):
            return None, None
        raise ConfigError(
            f"--gates {config.gates}: the run has no gates; calibrate them with "
            "`gemrl audit RUN --gates`"
        )
    found.require_policy(policy)
    found.require_alpha(alpha)
    if config.gates != "act":
        return found, None
    return found, Guard(policy, found, alpha, config.ladder)


def _looks_back(policy: Policy) -> int:
    """Steps of a decision's context; 0 where it has none."""
    return 0 if policy.context is None else policy.context.length


def _require_for_looking_back(policy: Policy, config: ServeConfig, log: LogConfig | None) -> None:
    """Refuse what needs states one by one, and a log that would tell what it shall not."""
    if config.gates in ("flag", "act"):
        policy.require_no_context(f"--gates {config.gates}")
    if log is not None and "action" in log.redact and "observation" not in log.redact:
        raise ConfigError(
            "--redact action: what this policy observes has the actions before it; redact "
            "observation too"
        )


def _checked_states(states: Dataset | None, policy: Policy) -> Dataset | None:
    if states is not None and states.observations.shape[1] != policy.spec.obs_dim:
        raise ConfigError(
            f"--states {states.source}: observations have {states.observations.shape[1]} numbers, "
            f"and the policy takes {policy.spec.obs_dim}"
        )
    return states


def as_json(values: Any) -> bytes:
    """Plain values as JSON."""
    return json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
