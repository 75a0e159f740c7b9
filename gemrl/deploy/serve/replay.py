"""Decisions of a log, decided again: bit for bit the same, or it says which are not."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gemrl.decide.gates import Gates
from gemrl.decide.guard import Guard
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy, load
from gemrl.deploy.serve.answers import audits, plain
from gemrl.deploy.serve.log import read_log
from gemrl.deploy.serve.requests import pairs_of
from gemrl.errors import BundleError, DataError, GemrlError

COMPARED = ("chosen", "n_scored", "score", "wp")


@dataclass
class Replay:
    """What came of deciding again."""

    requests: int = 0
    """Lines that were decided again."""
    decisions: int = 0
    """Observations in them."""
    same: int = 0
    """Decisions that were the same bit for bit."""
    redacted: int = 0
    """Lines that lack what deciding again needs."""
    missing: int = 0
    """Decisions that the log says it lost."""
    different: list[str] = field(default_factory=list)
    """Where and in what the others differ."""


def replay(path: Path, run: Path | None = None) -> Replay:
    """Decide again all that a log, a file or a folder of them, has of one policy.

    The policy is that of `run`, else of the run folder that the log names.
    """
    found = Replay()
    policies: dict[tuple[str, str], Policy] = {}
    for header, lines in read_log(path):
        place = run if run is not None else header.get("run")
        if place is None:
            raise DataError(f"{path}: the log does not say which run it is of: give --run")
        key = (str(place), str(header.get("backend")))
        if key not in policies:
            policies[key] = load(place, backend=key[1])
        policy = policies[key]
        if policy.digest != header.get("digest"):
            raise BundleError(
                f"{path} is of policy {str(header.get('digest'))[:16]}, and {place} holds "
                f"{policy.digest[:16]}: give the run that made it with --run"
            )
        guard = _guard(policy, header, Path(place))
        for number, line in enumerate(lines, 2):
            _replay_line(found, policy, guard, line, f"{path}, line {number}")
    return found


def _replay_line(
    found: Replay, policy: Policy, guard: Guard | None, line: dict[str, Any], where: str
) -> None:
    if "missing" in line:
        found.missing += int(line["missing"])
        return
    if "observation" not in line:
        found.redacted += 1
        return
    try:
        knobs = Knobs.from_json(line["knobs"])
        rows = np.array(line["observation"], np.float32)
        pairs = pairs_of(np.array(line["seed"]), len(rows))
        steps = np.broadcast_to(0 if line["t"] is None else np.array(line["t"]), (len(rows),))
        records = line["decisions"]
        actions = line.get("action")
        found.requests += 1
        for row, record in enumerate(records):
            only = slice(row, row + 1)
            call = {"seed": pairs[only], "t": steps[only]}
            ways = {
                "block": np.array([record["block"]]),
                "n_scored": np.array([record["n_scored"]]),
            }
            again = policy.decide_again(rows[only], knobs, **call, **ways).row(0)
            found.decisions += 1
            now = {
                "chosen": int(again.chosen),
                "n_scored": int(again.n_scored),
                "score": plain(again.score[int(again.chosen)]),
                "wp": float(again.wp),
            }
            wrong = [name for name in COMPARED if now[name] != record[name]]
            action, audit, then = again.action, audits(again), record["audit"]
            if record["rung"] != "search":
                if guard is None:
                    raise DataError(f"{where}: the guard that acted is not there: see --run")
                refused = record["rung"] == "refuse"
                action = np.full(len(action), np.nan)
                if not refused:
                    action = guard.actions_of(record["rung"], rows[only], knobs, **call)[0]
                # What the guard executed has audits of its own; those of the choice remain.
                audit, then = audit["chosen"], then["chosen"]
            if audit != then:
                wrong.append("audit")
            if actions is not None and plain(action) != actions[row]:
                wrong.append("action")
            if wrong:
                found.different.append(f"{where}, row {row}: {', '.join(wrong)}")
            else:
                found.same += 1
    except GemrlError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{where}: not a record of a decision ({error!r})") from error


def _guard(policy: Policy, header: dict[str, Any], run: Path) -> Guard | None:
    """The guard that the server had."""
    said = header.get("guard")
    if said is None:
        return None
    return Guard(
        policy,
        Gates.load(run, policy),
        said["alpha"],
        said["ladder"],
        said["on_novelty"],
        smaller_n=said["smaller_n"],
    )
