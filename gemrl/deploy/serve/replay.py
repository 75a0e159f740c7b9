"""Decisions of a log, decided again: bit for bit the same, or it says which are not."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gemrl.decide.decision import Decision
from gemrl.decide.gates import Gates
from gemrl.decide.guard import Guard
from gemrl.decide.history import seeing_contexts
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy, load
from gemrl.deploy.serve.answers import plain_decision
from gemrl.deploy.serve.log import about, read_log
from gemrl.deploy.serve.requests import pairs_of
from gemrl.errors import BundleError, DataError, GemrlError, RefusedError


@dataclass
class Replay:
    """What came of deciding again."""

    requests: int = 0
    """Lines that were decided again."""
    decisions: int = 0
    """Observations in them."""
    same: int = 0
    """Decisions that were the same bit for bit: action, choice, score, audits, gates and rung."""
    redacted: int = 0
    """Lines that lack what deciding again needs."""
    missing: int = 0
    """Decisions that the log says it lost."""
    different: list[str] = field(default_factory=list)
    """Where and in what the others differ."""


@dataclass(frozen=True, eq=False)
class Server:
    """What decided, as a log's header tells it."""

    policy: Policy
    gates: Gates | None
    alpha: float
    guard: Guard | None

    def decide(self, row: np.ndarray, knobs: Knobs, call: dict[str, Any], way: Any) -> Decision:
        """The decision at one observation [1, S], with the gates' word and what was executed."""
        found = self.policy.decide_again(row, knobs, **call, **way).row(0)
        if self.gates is None:
            return found
        verdict = self.gates.judge(row[0], found, self.alpha)
        if self.guard is None or not verdict.flagged:
            return dataclasses.replace(found, verdict=verdict)
        try:
            return self.guard.settle(row[0], found, verdict, knobs, **call)
        except RefusedError as error:
            return error.decision


def replay(path: Path, run: Path | None = None, behavior: Path | None = None) -> Replay:
    """Decide again all that a log, a file or a folder of them, has of one policy.

    The policy is that of `run`, else of the run folder that the log names; its density, where it
    was another's, that of `behavior` likewise.
    """
    found = Replay()
    policies: dict[tuple[str, ...], Policy] = {}
    for file, header, lines in read_log(path):
        place = run if run is not None else header.get("run")
        if place is None:
            raise DataError(f"{file}: the log does not say which run it is of: give --run")
        density = behavior if behavior is not None else header.get("behavior")
        key = (str(place), str(header.get("backend")), str(density))
        if key not in policies:
            policies[key] = seeing_contexts(load(place, backend=key[1], behavior=density))
        policy = policies[key]
        if policy.digest != header.get("digest"):
            raise BundleError(
                f"{file} is of policy {str(header.get('digest'))[:16]}, and {place} holds "
                f"{policy.digest[:16]}: give the run that made it with --run, and the one whose "
                "density it had with --behavior"
            )
        try:
            server = _server(policy, header, Path(place))
            redacted = list(header["redacted"])
        except (KeyError, TypeError) as error:
            raise DataError(f"{file}: its header cannot be read ({error!r})") from error
        for number, line in enumerate(lines, 2):
            _replay_line(found, server, line, redacted, f"{file.name}, line {number}")
    return found


def _replay_line(
    found: Replay, server: Server, line: dict[str, Any], redacted: list[str], where: str
) -> None:
    try:
        if "missing" in line:
            found.missing += int(line["missing"])
            return
        if "observation" in redacted:
            found.redacted += 1
            return
        knobs = Knobs.from_json(line["knobs"])
        rows = np.array(line["observation"], np.float32)
        pairs = pairs_of(np.array(line["seed"]), len(rows))
        steps = np.broadcast_to(0 if line["t"] is None else np.array(line["t"]), (len(rows),))
        records = line["decisions"]
        actions = [None] * len(rows) if "action" in redacted else line["action"]
        if not len(records) == len(actions) == len(rows) > 0:
            raise ValueError(f"{len(records)} decisions at {len(rows)} observations")
        found.requests += 1
        for row, (record, action) in enumerate(zip(records, actions, strict=True)):
            only = slice(row, row + 1)
            call = {"seed": pairs[only], "t": steps[only]}
            way = {name: np.array([record[name]]) for name in ("block", "n_scored")}
            again = plain_decision(server.decide(rows[only], knobs, call, way), anchored=False)
            now = about(again)
            wrong = [name for name in sorted({*now, *record}) if now.get(name) != record.get(name)]
            if action is not None and again["action"] != action:
                wrong.append("action")
            found.decisions += 1
            if wrong:
                found.different.append(f"{where}, row {row}: {', '.join(wrong)}")
            else:
                found.same += 1
    except GemrlError as error:
        raise type(error)(f"{where}: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{where}: not a record of a decision ({error!r})") from error


def _server(policy: Policy, header: dict[str, Any], run: Path) -> Server:
    """The policy with the gates and the guard that the server had."""
    if header["gates"] is None:
        return Server(policy, None, 0.0, None)
    gates, alpha, said = Gates.load(run, policy), header["gates"]["alpha"], header["guard"]
    guard = None
    if said is not None:
        smaller = said["smaller_n"]
        guard = Guard(
            policy, gates, said["alpha"], said["ladder"], said["on_novelty"], smaller_n=smaller
        )
    return Server(policy, gates, alpha, guard)
