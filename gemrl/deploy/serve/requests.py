"""What a client asks, checked: fields, limits, knobs, seeds, steps and deadlines."""

import dataclasses
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from gemrl.decide.backend import Shape, seed_pairs
from gemrl.decide.checks import observations, whole_numbers
from gemrl.decide.history import History
from gemrl.decide.knobs import Cosine, Knobs
from gemrl.deploy.serve import wire
from gemrl.deploy.serve.episodes import Episodes
from gemrl.deploy.serve.histories import Histories
from gemrl.errors import KnobError, RequestError

FIELDS = (
    "observation", "knobs", "profile", "seed", "episode", "t", "deadline_ms", "detail",
)  # fmt: skip
# Of policies that look back, where the server remembers each episode.
LOOKING_BACK = ("reward", "target_return")
LONGEST_ID = 128


@dataclass(eq=False)
class Ask:
    """One request: a state or a batch of them, and how to decide there. It never changes; frozen,
    it would take four times as long to make.
    """

    rows: np.ndarray
    """[B, S] Observations, or packed contexts where the policy looks back."""
    single: bool
    """Whether it was one state, so that the answer has no batch axis."""
    knobs: Knobs
    seed: int | np.ndarray
    t: int | np.ndarray | None
    """The episode's step, where it is known."""
    episode: str | None
    counted: bool
    """Whether the server's own count of the episode's steps gave `t`."""
    deadline_ms: float | None
    detail: bool
    """Whether all candidates are to be in the answer."""
    source: str
    """By which way it came: http or websocket."""
    arrived: float
    """When, by `time.perf_counter()`."""
    history: History | None
    """The episode before this step, where the policy looks back."""
    obs: np.ndarray
    """[S] or [B, S] What was observed, where `rows` has contexts too."""

    @cached_property
    def candidates(self) -> int:
        """Candidates of each row, anchor included."""
        return Shape.of(self.knobs).candidates

    @cached_property
    def pairs(self) -> np.ndarray:
        """[B, 2] The seed of each row, and which row of that seed's batch it draws as."""
        return pairs_of(np.asarray(self.seed), len(self.rows))

    @cached_property
    def steps(self) -> np.ndarray:
        """[B] The step of each row; zero where it was not told, and no schedule looks at it."""
        return np.full(len(self.rows), 0 if self.t is None else self.t)

    def draw(self, row: int) -> dict[str, Any]:
        """The seed and the step that one row is decided with."""
        if self.single:  # The usual case, and no time lost on arrays of one number.
            return {"seed": self.seed, "t": 0 if self.t is None else self.t}
        only = slice(row, row + 1)
        return {"seed": self.pairs[only], "t": self.steps[only]}

    def at_the_anchor(self) -> "Ask":
        """The same request, to be answered with the anchor alone."""
        anchor = "mode" if self.knobs.anchor == "none" else self.knobs.anchor
        return dataclasses.replace(self, knobs=dataclasses.replace(self.knobs, n=0, anchor=anchor))


@dataclass(frozen=True)
class Limits:
    """How much a request may ask for."""

    candidates: int
    """Candidates beside the anchor."""
    rows: int
    """Observations in a batch."""
    scored: int
    """Candidates of all rows together."""
    request_bytes: int
    """Size of a request."""
    deadline_ms: float
    """The longest deadline."""


class Reader:
    """Makes an `Ask` of what a client sent."""

    def __init__(
        self,
        obs_dim: int,
        defaults: Knobs,
        profiles: Mapping[str, Knobs],
        limits: Limits,
        deadline_ms: float | None,
        compiled: frozenset[Shape] | None,
        require: Callable[[Knobs], None],
        histories: Histories | None = None,
    ) -> None:
        """`compiled` are the only shapes that may be asked for; None is all of them. `require`
        refuses knobs that the policy cannot serve. `histories` are for one that looks back.
        """
        self.histories = histories
        self.fields = FIELDS if histories is None else FIELDS + LOOKING_BACK
        self.obs_dim = obs_dim
        self.defaults = defaults
        self.profiles = dict(profiles)
        self.limits = limits
        self.deadline_ms = deadline_ms
        self.compiled = compiled
        self.require = require
        self.episodes = Episodes()
        # Requests are read in the event loop, and in the deciding thread.
        self._lock = threading.Lock()
        # The same few settings come again and again, and are checked once.
        self._over_again = lru_cache(maxsize=1024)(
            lambda profile, items: self._over(profile, {name: value for name, _, value in items})
        )

    def read(self, values: Any, source: str, arrived: float | None = None) -> Ask:
        """The request that these plain values and arrays make."""
        arrived = time.perf_counter() if arrived is None else arrived
        if not isinstance(values, dict):
            raise RequestError('the request must be a map with "observation" in it')
        fields = wire.text(values)
        unknown = [str(name)[:64] for name in fields if name not in self.fields]
        if unknown:
            raise RequestError(f"unknown field {unknown[0]!r}: known are {', '.join(self.fields)}")
        if "observation" not in fields:
            raise RequestError('"observation" is missing: give a list or an array of numbers')
        rows = observations(_numbers(fields["observation"]), self.obs_dim)
        single = rows.ndim == 1
        rows = rows[None] if single else rows
        knobs = self._knobs(fields.get("profile"), fields.get("knobs"))
        self._require_within(len(rows), knobs)
        detail = _truth("detail", fields.get("detail", False))
        if detail and not single:
            raise RequestError("detail is given for a single observation only")
        deadline_ms = self._deadline(fields.get("deadline_ms"))
        seed = _whole("seed", fields.get("seed"), len(rows), single, 2**32)
        t = _whole("t", fields.get("t"), len(rows), single, 2**31)
        episode = _episode(fields.get("episode"))
        if episode is not None and not single:
            raise RequestError("episode names one episode: send its observations one by one")
        if isinstance(knobs.wp, Cosine) and t is None and episode is None:
            raise KnobError("wp is a schedule: give the episode's step as t, or name the episode")
        counted = episode is not None and t is None
        history, obs = None, rows[0] if single else rows
        with self._lock:
            if self.histories is not None:
                reward, target = (_number(name, fields.get(name)) for name in LOOKING_BACK)
                if isinstance(t, np.ndarray) or not single:
                    history = self.histories.first(len(rows), t, reward, target)
                else:
                    history = self.histories.now(episode, t, obs, reward, target)
                rows = history.contexts(obs)
                if episode is not None:
                    self.histories.ask(episode, history, reward)
                    t = int(history.steps[0])
            elif episode is not None:
                t = self.episodes.step(episode, t if isinstance(t, int) else None)
        return Ask(
            rows=rows,
            single=single,
            knobs=knobs,
            seed=secrets.randbits(32) if seed is None else seed,
            t=t,
            episode=episode,
            counted=counted,
            deadline_ms=deadline_ms,
            detail=detail,
            source=source,
            arrived=arrived,
            history=history,
            obs=obs,
        )

    def give_back(self, ask: Ask) -> None:
        """A step that no action came of."""
        if ask.episode is None:
            return
        with self._lock:
            if self.histories is not None:
                assert ask.history is not None
                self.histories.give_back(ask.episode, ask.history)
            elif ask.counted and isinstance(ask.t, int):
                self.episodes.give_back(ask.episode, ask.t)

    def remember(self, ask: Ask, action: np.ndarray) -> None:
        """An action came of a step, which the episode's next one looks back at."""
        if self.histories is not None and ask.episode is not None:
            assert ask.history is not None
            with self._lock:
                self.histories.decided(ask.episode, ask.history, ask.obs, action)

    @property
    def forgotten(self) -> int:
        """Episodes that were forgotten for others."""
        lost = 0 if self.histories is None else self.histories.forgotten
        return self.episodes.forgotten + lost

    def _knobs(self, profile: Any, given: Any) -> Knobs:
        """The defaults, a profile over them, and the request's own knobs over that, checked."""
        if profile is not None:
            profile = wire.text(profile)
            if not isinstance(profile, str) or profile not in self.profiles:
                known = ", ".join(sorted(self.profiles)) or "none"
                raise KnobError(f"profile = {str(profile)[:64]!r}: known are {known}")
        given = {} if given is None else given
        plain = isinstance(given, dict) and all(
            isinstance(value, int | float | str) for value in given.values()
        )
        if not plain:
            return self._over(profile, given)
        # True and 1 are equal, and not the same.
        items = [(name, type(value), value) for name, value in given.items()]
        return self._over_again(profile, tuple(items))

    def _over(self, profile: str | None, given: Any) -> Knobs:
        """Knobs over a profile's or the defaults, where this server serves them."""
        knobs = knobs_over(self.defaults if profile is None else self.profiles[profile], given)
        self.require(knobs)
        if knobs.n > self.limits.candidates:
            raise KnobError(f"n = {knobs.n}: this server takes {self.limits.candidates} at most")
        shape = Shape.of(knobs)
        if self.compiled is not None and shape not in self.compiled:
            sizes = sorted({one.n for one in self.compiled})
            raise KnobError(
                f"{knobs.describe()}: this server decides with compiled programs of fixed shape, "
                f"with n of {', '.join(map(str, sizes))} and the other words of its profiles; lam "
                "and wp are free, and so is temperature where a profile has one above 0. All knobs "
                "are for policies that the fast backend decides"
            )
        return knobs

    def _require_within(self, rows: int, knobs: Knobs) -> None:
        limits = self.limits
        if rows > limits.rows:
            raise RequestError(f"{rows} observations: this server takes {limits.rows} at most")
        if rows * knobs.n > limits.scored:
            raise RequestError(
                f"{rows} observations with {knobs.n} candidates each: this server scores "
                f"{limits.scored} at most in a request"
            )

    def _deadline(self, given: Any) -> float | None:
        if given is None:
            return self.deadline_ms
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not 0 < given <= self.limits.deadline_ms:
            raise KnobError(
                f"deadline_ms = {str(given)[:64]}: must be above 0, at most "
                f"{self.limits.deadline_ms:g}"
            )
        return float(given)


def pairs_of(seed: np.ndarray, rows: int) -> np.ndarray:
    """[B, 2] The seed of each row, and which row of that seed's batch it draws as."""
    return seed_pairs(seed.astype(np.uint32), rows)


def knobs_over(knobs: Knobs, given: Any) -> Knobs:
    """Knobs with some of their fields replaced by plain values."""
    if not isinstance(given, dict):
        raise KnobError('knobs must be a map, such as {"n": 64}')
    fields = wire.text(given)
    known = [field.name for field in dataclasses.fields(Knobs)]
    for name in fields:
        if name not in known:
            raise KnobError(f"unknown knob {str(name)[:64]!r}: known are {', '.join(known)}")
    changed = {name: wire.text(value) for name, value in fields.items()}
    if isinstance(changed.get("wp"), dict):
        schedule = changed["wp"]
        wanted = {field.name for field in dataclasses.fields(Cosine)}
        if not {"end", "horizon"} <= set(schedule) <= wanted:
            raise KnobError("wp must be a number, or a map with end, horizon and perhaps start")
        changed["wp"] = Cosine(**schedule)
    return dataclasses.replace(knobs, **changed)


def from_json(body: bytes) -> Any:
    """The plain values of a JSON body; anything that JSON does not have is refused."""
    try:
        return json.loads(body, parse_constant=_refused_constant)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not readable as JSON: {str(error)[:200]}") from error


def from_large_json(body: bytes) -> Any:
    """The same, with the observation as an array already: for another thread to do."""
    return with_array(from_json(body))


def with_array(values: Any) -> Any:
    """A request's values with its observation as an array, which takes long where it is long."""
    if isinstance(values, dict):
        for name in ("observation", b"observation"):
            if isinstance(values.get(name), list):
                values[name] = _numbers(values[name])
    return values


def _refused_constant(name: str) -> Any:
    raise RequestError(f"{name} is not JSON: numbers must be finite")


def _numbers(given: Any) -> Any:
    """A list of numbers or an array; text and truth values are no numbers."""
    if isinstance(given, np.ndarray):
        return given
    if not isinstance(given, list):
        raise RequestError("observation must be a list of numbers, or a list of such lists")
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise RequestError("observation must be a list of numbers, or of equal lists") from error
    if array.dtype.kind not in "fiu" or _has_truth_values(given):
        raise RequestError("observation holds something that is not a number of usual size")
    return array


def _has_truth_values(given: list[Any]) -> bool:
    """Whether true or false stand among the numbers: NumPy would take them for 1 and 0."""
    return any(
        isinstance(one, bool) or (isinstance(one, list) and _has_truth_values(one)) for one in given
    )


def _whole(name: str, given: Any, rows: int, single: bool, limit: int) -> int | np.ndarray | None:
    """A whole number, or one for each row of a batch."""
    if given is None:
        return None
    if isinstance(given, np.ndarray | list) and not single:
        if isinstance(given, list) and not all(type(value) is int for value in given):
            raise KnobError(f"{name} must hold whole numbers")
        try:
            array = np.asarray(given)
        except (ValueError, OverflowError) as error:
            raise KnobError(f"{name} must hold whole numbers") from error
        return whole_numbers(name, array, rows, limit)
    if type(given) is not int or not 0 <= given < limit:
        several = "" if single else ", or a list with one for each observation"
        raise KnobError(
            f"{name} = {str(given)[:64]}: must be a whole number from 0 to {limit - 1}{several}"
        )
    return given


def _truth(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise RequestError(f"{name} must be true or false")
    return given


def _number(name: str, given: Any) -> float | None:
    if given is None:
        return None
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            number = float(given)
            if math.isfinite(number):
                return number
    except OverflowError:  # A whole number of any length.
        pass
    raise RequestError(f"{name} = {str(given)[:64]}: must be a finite number")


def _episode(given: Any) -> str | None:
    if given is None:
        return None
    name = wire.text(given)
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        raise RequestError(f"episode must be a text of 1 to {LONGEST_ID} letters")
    return name
