"""Whether decisions jump between the mixture's modes, what that costs, and what would hold them."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gemrl.decide.decision import Decision
from gemrl.decide.knobs import Knobs
from gemrl.decide.policy import Policy
from gemrl.envs.make import make_env
from gemrl.evaluate.reproduce.document import Document, Plot, Table
from gemrl.evaluate.reproduce.mechanisms.reading import (
    Record,
    by_task,
    difference,
    each,
    over_seeds,
    pick,
    sign,
    tasks_in,
    with_error,
)
from gemrl.evaluate.reproduce.mechanisms.seen import Seen
from gemrl.evaluate.rollouts import episode_seeds
from gemrl.maths.mixture import Mixture, log_joint
from gemrl.maths.statistics import Estimate, normalized_score

ROLLOUTS, LOGGED = "modes", "modes of the data"
FAR = 0.5
"""Two components are far apart if their means differ by so much of half the action range, in the
root mean square over dimensions."""


@dataclass(frozen=True)
class Rule:
    """A way to pick among scored candidates."""

    name: str
    knobs: Knobs
    margin: float | None = None
    """Leave the last step's component only for a score better by so many standard deviations of
    the candidate set; None for no such rule."""
    least_weight: float = 0.0
    """Take only candidates of components with this share of the heaviest one's weight."""


def rules(knobs: Knobs) -> list[Rule]:
    """The mixture's candidates, to which all else is compared, then others and remedies."""
    assert isinstance(knobs.wp, float)
    quarter = replace(knobs, wp=knobs.wp / 4)
    return [
        Rule("mixture", knobs),
        Rule("anchor alone", replace(knobs, n=0)),
        Rule("heaviest component", replace(knobs, source="unimodal")),
        Rule("mixture, sticky by 0.5", knobs, margin=0.5),
        Rule("mixture, sticky by 2", knobs, margin=2.0),
        Rule("mixture, heavy components", knobs, least_weight=0.5),
        Rule("mixture, w_p / 4", quarter),
        Rule("heaviest component, w_p / 4", replace(quarter, source="unimodal")),
    ]


def component_of(actor: Mixture, actions: np.ndarray) -> np.ndarray:
    """Which component each action [B, C, A] most likely came from."""
    return np.asarray(_most_likely(actor, jnp.asarray(actions)))


@jax.jit
def _most_likely(actor: Mixture, actions: Float[Array, "b c a"]) -> Array:
    beside = jax.tree.map(lambda x: x[:, None], actor)
    return jnp.argmax(log_joint(beside, actions), axis=-1)


def pick_candidate(
    rule: Rule,
    decision: Decision,
    components: np.ndarray,
    log_weights: np.ndarray,
    last: np.ndarray | None,
) -> np.ndarray:
    """Index of each row's candidate by a rule, given the component executed last, if any.

    `components` are those of the candidates [B, C], `log_weights` the actor's gates [B, K].
    """
    score = np.asarray(decision.score, np.float64)
    if rule.least_weight > 0:
        relative = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        light = np.take_along_axis(relative, components, axis=1) < rule.least_weight
        # The anchor is of the heaviest component, so one candidate always stays.
        score = np.where(light, -np.inf, score)
        score[:, 0] = np.asarray(decision.score)[:, 0]
    best = score.argmax(axis=1)
    if rule.margin is None or last is None:
        return best
    rows = np.arange(len(score))
    staying = np.where(components == last[:, None], score, -np.inf)
    stay = staying.argmax(axis=1)
    better_by = score[rows, best] - staying[rows, stay]
    spread = np.asarray(decision.score, np.float64).std(axis=1)
    return np.where(better_by > rule.margin * spread, best, stay)


def trained(seen: Seen, knobs: Knobs) -> list[Record]:
    """Roll every rule out from the same validation starts."""
    count = min(seen.effort.episodes, seen.study.budget.validation_episodes(seen.task.name))
    seeds = np.array(episode_seeds(seen.task, "validation", count))
    records: list[Record] = []
    reference: np.ndarray | None = None
    for rule in rules(knobs):
        found = roll(seen.gem, rule, seen, seeds)
        reference = found["score"] if reference is None else reference
        record: Record = {"experiment": ROLLOUTS, "rule": rule.name, "knobs": knobs.describe()}
        record |= {"episodes": count}
        for name, values in found.items():
            record |= with_error(name, values)
        records.append(record | with_error("gain", found["score"] - reference))
    return [*records, {"experiment": LOGGED} | _logged(seen)]


def roll(policy: Policy, rule: Rule, seen: Seen, seeds: np.ndarray) -> dict[str, np.ndarray]:
    """Score and smoothness of each episode."""
    task, count = seen.task, len(seeds)
    env = make_env(task, count)
    obs = env.reset(seeds)
    # As in every evaluation, so that the plain rules give the episodes that rows are made of.
    decision_seeds = np.stack(
        [np.random.default_rng([s, 1]).integers(2**32, size=task.horizon) for s in seeds]
    )
    half = policy.spec.action_half
    returns, alive = np.zeros(count), np.ones(count, bool)
    kept: dict[str, list[np.ndarray]] = {}
    last_action, last = None, None
    for t in range(task.horizon):
        decision = policy.decide(obs, rule.knobs, seed=decision_seeds[:, t], t=t)
        actor = policy.actor(obs)
        components = component_of(actor, decision.candidates)
        rows = np.arange(count)
        chosen = pick_candidate(rule, decision, components, np.asarray(actor.log_weights), last)
        action, component = decision.candidates[rows, chosen], components[rows, chosen]
        heaviest = np.argmax(actor.log_weights, axis=1)
        measured = {
            "light": component != heaviest,
            "weight": np.exp(np.asarray(actor.log_weights)[rows, component]),
            "support_z": decision.support_z[rows, chosen],
        }
        if last is not None and last_action is not None:
            means = np.asarray(actor.means)
            apart = (means[rows, component] - means[rows, last]) / half
            switched = component != last
            measured |= {
                "switched": switched,
                "jumped": switched & (_size(apart) > FAR),
                "moved": _size((action - last_action) / half),
                "reversed": (action * last_action).sum(axis=1) < 0,
            }
        for name, values in measured.items():
            kept.setdefault(name, []).append(np.where(alive, values, np.nan))
        obs, rewards, ended = env.step(np.where(alive[:, None], action, 0.0))
        returns += rewards
        alive &= ~ended
        last_action, last = action, component
        if not alive.any():
            break
    means = {name: np.nanmean(np.stack(values), axis=0) for name, values in kept.items()}
    scores = np.array([normalized_score(float(r), *task.reference) for r in returns])
    return {"score": scores, **means}


def _size(vectors: np.ndarray) -> np.ndarray:
    """Root mean square over the last axis."""
    return np.sqrt((vectors**2).mean(axis=-1))


def _logged(seen: Seen) -> Record:
    """How far consecutive actions of the data are apart."""
    data = seen.data
    starts = np.zeros(len(data), bool)
    starts[data.episode_starts] = True
    rows = np.flatnonzero(~starts)
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), 20_000)).astype(int)]
    now, before = data.actions[rows], data.actions[rows - 1]
    return {
        "moved": float(_size((now - before) / seen.gem.spec.action_half).mean()),
        "reversed": float(((now * before).sum(axis=1) < 0).mean()),
    }


COLUMNS = {
    "score": ("score", ".1f"),
    "gain": ("over the mixture", "+.1f"),
    "switched": ("component changes", ".3f"),
    "jumped": ("to one far away", ".3f"),
    "moved": ("step in action", ".3f"),
    "reversed": ("action reverses", ".3f"),
    "light": ("not the heaviest component", ".3f"),
    "weight": ("its gate weight", ".2f"),
}


def chapter(document: Document, records: list[Record]) -> None:
    """What was asked, and what was found."""
    document.add(
        "## Mixture or heaviest component: does the decision jump between modes?",
        "Candidates of the actor's heaviest component can beat candidates of the whole mixture. "
        "One explanation: the best candidate comes from one mode now, from another a step later, "
        "and the body gets nowhere. Components keep their number from state to state, so the "
        "component that most likely gave the executed action can be followed; a sample of the "
        "heaviest may lie nearer to another. Two remedies act on the same scored "
        "candidates. A sticky rule stays with the last component unless another's best score is "
        "better by a margin, in standard deviations of the candidate set. The other leaves out "
        "candidates of components with less than half of the heaviest one's weight. If the sticky "
        "rule mends the score, jumping is the cause; if only the other does, light components' "
        "candidates are overrated. A third explanation needs no remedy: samples of the heaviest "
        "component are near the data by themselves, so they stand in for a larger w_p. Then their "
        "lead is larger at a quarter of w_p.",
    )
    found = pick(records, experiment=ROLLOUTS)
    if found:
        document.add(*_trained(found, pick(records, experiment=LOGGED)))


def _trained(records: list[Record], logged: list[Record]) -> list[str | Table | Plot]:
    from gemrl.evaluate.reproduce.plots import bars

    lines, said = [], []
    tasks, names = tasks_in(records), each(records, "rule")
    for task in tasks:
        of = {name: pick(records, task=task, rule=name) for name in names}
        for name in names:
            lines.append([task, name])
            for field, (_, form) in COLUMNS.items():
                lines[-1].append(f"{over_seeds(of[name], field):{form}}")
        data = pick(logged, task=task)
        still = {f: f"{over_seeds(data, f):{COLUMNS[f][1]}}" for f in ("moved", "reversed")}
        lines.append([task, "the data", *(still.get(field, "–") for field in COLUMNS)])
        said.append(f"{task}: {_cause(of)}")
    first = records[0]
    settings = "; ".join(f"{t}: {', '.join(each(pick(records, task=t), 'knobs'))}" for t in tasks)
    gains = {
        name: [_pair(over_seeds(pick(records, task=t, rule=name), "gain")) for t in tasks]
        for name in names
        if name != "mixture"
    }
    jumps = {
        name: [_pair(over_seeds(pick(records, task=t, rule=name), "jumped")) for t in tasks]
        for name in names
    }
    beats = {t: over_seeds(pick(records, task=t, rule="heaviest component"), "gain") for t in tasks}
    return [
        Table(
            f"Rollouts on validation seeds, {first['episodes']} episodes a training seed, from the "
            "same starts. Shares of steps; steps in half the action range",
            ["task", "candidates", *(title for title, _ in COLUMNS.values())],
            lines,
        ),
        f"Knobs: {settings} (the constant w_p with the best validation score).",
        Plot(
            "Score over that of the mixture's candidates, same starts",
            bars(tasks, gains, "difference in score", zero=True),
        ),
        Plot(
            "Share of steps at which the executed action's component changes to one far away",
            bars(tasks, jumps, "share of steps"),
        ),
        "That the heaviest component's candidates score higher than the mixture's: "
        + by_task(beats, form="+.1f"),
        *said,
    ]


def _pair(found: Estimate) -> tuple[float, float]:
    return found.mean, found.stderr


def _cause(of: dict[str, list[Record]]) -> str:
    """Which explanation the numbers of a task agree with."""
    jumps = {name: over_seeds(of[name], "jumped") for name in of}
    gains = {name: over_seeds(of[name], "gain") for name in of if name != "anchor alone"}
    facts = (
        f"the mixture's decision jumps at {jumps['mixture'].mean:.1%} of the steps and the "
        f"heaviest component's at {jumps['heaviest component'].mean:.1%}"
    )
    sticky = max((name for name in gains if "sticky" in name), key=lambda name: gains[name].mean)
    facts += (
        f"; the better sticky rule jumps at {jumps[sticky].mean:.1%} and changes the score by "
        f"{gains[sticky]:+.1f}; leaving out light components changes it by "
        f"{gains['mixture, heavy components']:+.1f}"
    )
    small = [of[f"{name}, w_p / 4"] for name in ("heaviest component", "mixture")]
    lead = difference(small[0], small[1], "score")
    facts += (
        f". The heaviest component's lead over the mixture is {gains['heaviest component']:+.1f}, "
        f"and {lead:+.1f} at a quarter of w_p"
    )
    helped = {
        "jumping": sign(gains[sticky]) > 0,
        "light components' candidates": sign(gains["mixture, heavy components"]) > 0,
    }
    if sign(gains["heaviest component"]) <= 0:
        below = ", but is at a quarter of it, where it stands in for support" * (sign(lead) > 0)
        return f"{facts}. It is not surely better at the chosen w_p{below}."
    causes = [name for name, found in helped.items() if found]
    if causes:
        return f"{facts}. This speaks for {' and '.join(causes)} as the cause."
    return f"{facts}. Neither remedy surely helps, so neither explanation is confirmed."
