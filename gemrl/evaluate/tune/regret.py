"""Was the recommendation any good? Asked of episodes that were run with the same settings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemrl.decide.knobs import Knobs
from gemrl.errors import DataError
from gemrl.evaluate.choose import by_setting, score_of
from gemrl.evaluate.rows import Row
from gemrl.evaluate.tune.estimate import rank_correlation
from gemrl.maths.statistics import estimate

# Standard errors by which a recommendation must fall short of the default to be called bad.
BAD = 2.0


def regrets(report: dict[str, Any], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A comparison with the rows of this policy for each protocol that they have."""
    bundle, task = report["run"]["bundle"], report["run"]["task"]
    own = [
        row for row in rows if row.bundle == bundle and row.task == task and row.mass_scale == 1.0
    ]
    protocols = sorted({row.protocol for row in own})
    found = [regret(report, [r for r in own if r.protocol == protocol]) for protocol in protocols]
    if not found:
        raise DataError(
            f"the rows hold no episode of this policy ({bundle[:16]}) in {task}: give rows that "
            "were made with it"
        )
    return found


def regret(report: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """How the recommended and the default setting did among those that were run, of one protocol.

    Regret is the best setting's mean score minus this one's. None stands for a setting that was
    not run. The best of many settings is best partly by luck, so a little regret is to be expected.
    """
    groups = dict(by_setting(rows))
    judged = {Knobs.from_json(s["knobs"]): s for s in report["settings"]}
    scores = {knobs: score_of(groups[knobs]) for knobs in judged if knobs in groups}
    if len(scores) < 2:
        raise DataError(
            f"the {rows[0].protocol} rows hold {len(scores)} of the {len(judged)} settings that "
            "were compared; run at least two of them"
        )
    best = max(scores, key=lambda knobs: scores[knobs].mean)
    named = {
        "best": best,
        "recommended": Knobs.from_json(report["recommendation"]["knobs"]),
        "default": Knobs.from_json(report["default"]),
    }
    values = [judged[knobs]["value"] for knobs in scores]
    known = all(value is not None for value in values)
    gain = _paired(groups.get(named["recommended"]), groups.get(named["default"]))
    return {
        "protocol": rows[0].protocol,
        "settings": len(scores),
        **{
            name: None
            if knobs not in scores
            else {
                "knobs": knobs.to_json(),
                "score": scores[knobs].mean,
                "episodes": scores[knobs].samples,
                "regret": scores[best].mean - scores[knobs].mean,
            }
            for name, knobs in named.items()
        },
        "gain": gain,
        "bad": gain is not None and gain["mean"] < -BAD * gain["stderr"],
        "rank_correlation": rank_correlation(
            np.array([value["mean"] for value in values]),
            np.array([score.mean for score in scores.values()]),
        )
        if known
        else None,
        "online": [
            {"knobs": knobs.to_json(), "score": score.mean, "episodes": score.samples}
            for knobs, score in scores.items()
        ],
    }


def _paired(one: list[Row] | None, other: list[Row] | None) -> dict[str, float] | None:
    """Mean score of one setting minus the other's on the episodes that both ran, at least two."""
    if not one or not other:
        return None
    there = {(row.train_seed, row.episode_seed): row.score for row in other}
    pairs = [(row.score, there.get((row.train_seed, row.episode_seed))) for row in one]
    gains = [mine - its for mine, its in pairs if its is not None]
    if len(gains) < 2:
        return None
    found = estimate(gains)
    return {"mean": found.mean, "stderr": found.stderr}


def describe_regret(found: dict[str, Any]) -> str:
    """A small table, and in words whether the recommendation would have been bad."""
    told = [f"{found['protocol']} episodes of {found['settings']} of the settings"]
    for name in ("best", "recommended", "default"):
        line = found[name]
        if line is None:
            told.append(f"  {name:12} was not run")
            continue
        knobs = Knobs.from_json(line["knobs"]).describe()
        told.append(
            f"  {name:12} {knobs:24} score {line['score']:6.1f}  regret {line['regret']:5.1f}  "
            f"({line['episodes']} episodes)"
        )
    correlation = found["rank_correlation"]
    if correlation is not None:
        told.append(f"  rank correlation of estimated value and score: {correlation:+.2f}")
    gain = found["gain"]
    if found["recommended"] is not None and found["recommended"] == found["default"]:
        told.append("  the default was kept")
    elif gain is not None:
        by = f"{gain['mean']:+.1f} ± {gain['stderr']:.1f} against the default"
        told.append(
            f"  THE RECOMMENDATION WOULD HAVE BEEN BAD: {by}"
            if found["bad"]
            else f"  the recommendation: {by}"
        )
    return "\n".join(told)
