"""What is answered: a decision as plain values, with its audits, gates and timings."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from gemrl.decide.decision import Decision
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.decide.verdict import Verdict
from gemrl.deploy.serve.decider import Outcome
from gemrl.errors import GemrlError, OverloadError, RefusedError, RequestError
from gemrl.maths.mixture import Mixture

# Requests above this are read outside the event loop.
LARGE = 65_536
LONGEST_MESSAGE = 1_000
NUMBERS = (int, float, np.generic)
AUDITS = ("log_support", "support_z", "violation", "collapse_dist")


def answer(outcome: Outcome, policy: Policy) -> dict[str, Any]:
    """The answer to a request; for a batch each field of a row is a list."""
    ask = outcome.ask
    rows = [row(outcome, place) for place in range(len(outcome.decisions))]
    fields = {
        **(rows[0] if ask.single else _listed(rows)),
        "knobs": plain_knobs(ask.knobs),
        "seed": plain(ask.seed),
        "t": plain(ask.t),
        "episode": ask.episode,
        "fallback": outcome.fallback,
        "digest": policy.digest,
        "backend": policy.backend.name,
        "timings": timings(outcome),
    }
    if ask.detail:
        fields["detail"] = detail(outcome.decisions[0], policy, ask.rows[0])
    return fields


@lru_cache(maxsize=1024)
def plain_knobs(knobs: Knobs) -> dict[str, Any]:
    """Knobs as plain values; the same few come again and again."""
    return knobs.to_json()


def row(outcome: Outcome, place: int) -> dict[str, Any]:
    """One decision as plain values, made once for the answer, the page and the log."""
    found = outcome.told.get(place)
    if found is None:
        anchored = outcome.ask.knobs.anchor != "none"
        found = outcome.told[place] = plain_decision(outcome.decisions[place], anchored)
    return found


class TooLargeError(RequestError):
    """The body is larger than the server takes."""


class TooSlowError(RequestError):
    """The body came too slowly."""


STATUS = {OverloadError: 503, RefusedError: 422, TooLargeError: 413, TooSlowError: 408}


def status_of(error: BaseException) -> int:
    """The HTTP status of an error."""
    return STATUS.get(type(error), 400) if isinstance(error, GemrlError) else 500


def typed_error(error: BaseException) -> dict[str, Any]:
    """What a client learns of an error; of a defect of ours, nothing of our inside."""
    if not isinstance(error, GemrlError):
        return {"error": {"type": "InternalError", "message": "see the server's log"}}
    kind = "RequestError" if isinstance(error, RequestError) else type(error).__name__
    # A message quotes what was sent, which may be long.
    return {"error": {"type": kind, "message": str(error)[:LONGEST_MESSAGE]}}


def timings(outcome: Outcome) -> dict[str, float]:
    """Milliseconds in the queue, in deciding, and from the request's arrival to the decision."""
    arrived, started, finished = outcome.ask.arrived, outcome.started, outcome.finished
    return {
        "queue_ms": round(1e3 * (started - arrived), 4),
        "decide_ms": round(1e3 * (finished - started), 4),
        "total_ms": round(1e3 * (finished - arrived), 4),
    }


def audits(decision: Decision) -> dict[str, dict[str, Any]]:
    """The four audits of the chosen candidate and of the executed action."""
    chosen = int(decision.chosen)
    return {
        "chosen": {
            "log_support": plain(decision.log_support[chosen]),
            "support_z": plain(decision.support_z[chosen]),
            "violation": bool(decision.violation),
            "collapse_dist": plain(decision.collapse_dist),
        },
        "executed": {name: plain(getattr(decision, f"executed_{name}")) for name in AUDITS},
    }


def gates(decision: Decision) -> dict[str, Any] | None:
    """What the gates said, in short."""
    if not isinstance(decision.verdict, Verdict):
        return None
    said = decision.verdict.to_json()
    return {name: said[name] for name in ("p", "flags", "joint_p", "flagged", "alpha")}


def rung(decision: Decision) -> str:
    """What was executed: the search's action, or a rung of the guard's ladder."""
    return str(decision.verdict.rung) if isinstance(decision.verdict, Verdict) else "search"


def detail(decision: Decision, policy: Policy, obs: np.ndarray) -> dict[str, Any]:
    """All candidates and both mixtures of one decision."""
    return {
        **{
            name: plain(getattr(decision, name))
            for name in ("candidates", "score", "lcb", "support_z", "log_support")
        },
        "actor": _mixture(policy.actor(obs)) if policy.proposes_mixture else None,
        "behavior": None if policy.models.behavior is None else _mixture(policy.behavior(obs)),
    }


def plain_decision(decision: Decision, anchored: bool) -> dict[str, Any]:
    """What is told of a decision."""
    chosen = int(decision.chosen)
    return {
        "action": plain(decision.action),
        "anchor": plain(decision.candidates[0]) if anchored else None,
        "n_scored": int(decision.n_scored),
        "block": int(decision.block),
        "chosen": chosen,
        "score": plain(decision.score[chosen]),
        "lcb": plain(decision.lcb[chosen]),
        "wp": float(decision.wp),
        "audit": audits(decision),
        "gates": gates(decision),
        "rung": rung(decision),
    }


def _listed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _mixture(mixture: Mixture) -> dict[str, Any]:
    return {
        "weights": np.exp(mixture.log_weights).tolist(),
        "means": np.asarray(mixture.means).tolist(),
        "stds": np.asarray(mixture.stds).tolist(),
    }


def plain(value: Any) -> Any:
    """Lists, numbers and truth values; what is not finite becomes null."""
    # Single numbers and short lists are most of an answer, and no time is lost on them.
    if value is None or isinstance(value, NUMBERS):
        return _plain_number(value)
    array = np.asarray(value)
    if array.ndim == 0:
        return _plain_number(array.item())
    if array.ndim == 1 and array.dtype.kind in "fiu":
        numbers = array.tolist()
        if all(map(math.isfinite, numbers)):
            return numbers
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        finite, array = np.isfinite(array), array.astype(object)
        array[~finite] = None
    return array.tolist()


def _plain_number(value: Any) -> Any:
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number
