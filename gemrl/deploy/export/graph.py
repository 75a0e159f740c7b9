"""GEM's decision as an ONNX graph: `gemrl.decide.select` once more, with noise as an input.

Each function mirrors one of `gemrl.decide.select` or `gemrl.maths`, formula by formula and in the
same order, on a batch of states: B states, C candidates (anchor first), A action dimensions, K
components, M critics. The tests compare the two. Networks are in `layers`, candidates in
`proposals`.
"""

from typing import NamedTuple

import numpy as np

from gemrl.decide.knobs import Knobs
from gemrl.deploy.export.builder import TYPES, Builder, Value
from gemrl.deploy.export.contract import Fixed
from gemrl.deploy.export.layers import activation, layers, linear, norm, require
from gemrl.deploy.export.proposals import Components, clipped, mixture, propose, take
from gemrl.learn.spec import Spec
from gemrl.maths.audits import VIOLATION_Z
from gemrl.maths.score import MIN_STD
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import Models

LARGEST = float(np.finfo(np.float32).max)


class Sizes(NamedTuple):
    """Sizes as tensors of the graph, or as numbers where they are constant."""

    each_row: Value | list[int]
    """[B, 1, C]"""
    candidates: Value | list[int]
    """C"""
    k_smooth: Value | list[int]
    """The knob."""
    best: Value | list[int]
    """min(k_smooth, C)"""


def decision(
    g: Builder, models: Models, spec: Spec, knobs: Knobs, fixed: Fixed | None
) -> dict[str, Value]:
    """Add a whole decision to the graph; gives its outputs by name."""
    scaled = g.add("Div", g.add("Sub", "observation", spec.obs_mean), spec.obs_std)
    behavior = None if models.behavior is None else mixture(g, scaled, models.behavior, spec)
    candidates = propose(g, models, behavior, scaled, spec, knobs, fixed)
    if not models.critics:
        return anchor_alone(g, candidates, behavior)
    sizes = _sizes(g, candidates, knobs, fixed)
    q = critic_values(g, models.critics, scaled, candidates, sizes, spec)
    return rank(g, candidates, sizes, q, behavior, spec, knobs)


def critic_values(
    g: Builder,
    critics: tuple[Critic, ...],
    scaled: Value,
    candidates: Value,
    sizes: Sizes,
    spec: Spec,
) -> Value:
    """`select.critic_values`: [B, M, C]."""
    unit = g.add("Div", g.add("Sub", candidates, spec.action_middle), spec.action_half)
    values = []
    for critic in critics:
        require(critic, Critic)
        # The state's part of the first layer is computed once, for all candidates.
        state = g.add("Unsqueeze", linear(g, scaled, critic.from_state), [1])
        first = g.add("Add", state, g.add("MatMul", unit, np.asarray(critic.from_action)))
        rows = g.add("Reshape", first, [-1, critic.from_action.shape[1]])
        rows = activation(g, rows, critic.net.activation)
        rows = rows if critic.norm is None else norm(g, rows, critic.norm)
        values.append(g.add("Reshape", layers(g, rows, critic.net), sizes.each_row))
    return values[0] if len(values) == 1 else g.add("Concat", *values, axis=1)


def rank(
    g: Builder,
    candidates: Value,
    sizes: Sizes,
    q: Value,
    behavior: Components | None,
    spec: Spec,
    knobs: Knobs,
) -> dict[str, Value]:
    """`select.rank`: the fields of a `Decision` that a robot needs, of the chosen candidate."""
    mean, std = _mean_and_std(g, q)
    spread = g.add("Mul", g.add("Unsqueeze", "lam", [1]), g.add("Squeeze", std, [1]))
    lcb = g.add("Sub", g.add("Squeeze", mean, [1]), spread)
    score = zscore(g, lcb, sizes.candidates) if knobs.value == "zscore" else lcb
    log_support = support_z = None
    if behavior is not None:
        log_support = log_prob(g, behavior, candidates)
        support_z = zscore(g, log_support, sizes.candidates)
        support = log_support if knobs.support == "raw" else support_z
        score = g.add("Add", score, g.add("Mul", g.add("Unsqueeze", "wp", [1]), support))

    ranked = score
    if knobs.temperature > 0:
        if knobs.anchor == "none":  # There is noise for one all the same, the first.
            wider = g.add("Concat", g.add("Slice", score, [0], [1], [1]), score, axis=1)
            noise = _of_shape(g, "draw_noise", wider)
            noise = g.add("Slice", noise, [1], [np.iinfo(np.int64).max], [1])
        else:
            noise = _of_shape(g, "draw_noise", score)
        # Gumbel noise made of a uniform 0 or 1 is infinite, and no finite one comes near these.
        noise = g.add("Clip", noise, -100.0, 100.0)
        ranked = g.add("Add", score, g.add("Mul", g.add("Unsqueeze", "temperature", [1]), noise))
    # TopK takes the lower index of equal scores. -0.0 must tie with 0.0, and a comparison with NaN
    # must not reach it; an action from such scores is refused below.
    usable = g.add("And", _is_finite(g, ranked), g.add("Not", g.add("Equal", ranked, 0.0)))
    held = g.add("Where", usable, ranked, 0.0)
    _, best = g.add_several("TopK", 2, held, sizes.best, axis=1, largest=1, sorted=1)
    chosen = g.add("Slice", best, [0], [1], [1])

    def of_chosen(each: Value) -> Value:
        return g.add("Squeeze", g.add("GatherElements", each, chosen, axis=1), [1])

    winner = take(g, candidates, chosen)
    averaged = g.add("ReduceMean", take(g, candidates, best), [1], keepdims=1)
    # A mean of actions at a bound can pass it by rounding.
    executed = clipped(g, averaged, spec.action_low, spec.action_high)
    made = {
        "action": _where_finite(g, ranked, g.add("Squeeze", executed, [1])),
        "chosen": g.add("Squeeze", chosen, [1]),
        "score": of_chosen(score),
        "lcb": of_chosen(lcb),
    }
    if behavior is None or log_support is None or support_z is None:
        return made

    support_of_executed = log_prob(g, behavior, executed)
    z_of_executed = _standardized(g, support_of_executed, *_moments(g, log_support))
    alone = g.add("Equal", sizes.k_smooth, [1])
    of_winner = of_chosen(log_support), of_chosen(support_z)
    # One candidate alone is executed as it is, with what is known of it.
    of_executed = (
        g.add("Where", alone, known, g.add("Squeeze", value, [1]))
        for known, value in zip(of_winner, (support_of_executed, z_of_executed), strict=True)
    )
    made |= _audits(g, "", winner, behavior, *of_winner)
    return made | _audits(g, "executed_", executed, behavior, *of_executed)


def anchor_alone(g: Builder, anchor: Value, behavior: Components | None) -> dict[str, Value]:
    """The decision without critics, where nothing is ranked: the anchor [B, 1, A] is executed."""
    action = g.add("Squeeze", anchor, [1])
    made = {"action": _where_finite(g, action, action)}
    if behavior is None:
        return made
    log_support = log_prob(g, behavior, anchor)
    known = [g.add("Squeeze", x, [1]) for x in (log_support, zscore(g, log_support, [1]))]
    for prefix in ("", "executed_"):
        made |= _audits(g, prefix, anchor, behavior, *known)
    return made


def _audits(
    g: Builder, prefix: str, action: Value, behavior: Components, log_support: Value, z: Value
) -> dict[str, Value]:
    """The four audits of an action [B, 1, A] by name, from its log support and support z [B]."""
    return {
        f"{prefix}log_support": log_support,
        f"{prefix}support_z": z,
        f"{prefix}violation": g.add("Less", z, VIOLATION_Z),
        f"{prefix}collapse_dist": _collapse_distance(g, action, behavior),
    }


def log_prob(g: Builder, density: Components, actions: Value) -> Value:
    """`mixture.log_prob` of actions [B, C, A]: [B, C]."""
    away = g.add("Sub", g.add("Unsqueeze", actions, [2]), g.add("Unsqueeze", density.means, [1]))
    standardized = g.add("Div", away, density.stds)
    constants = np.float32(np.log(2 * np.pi)) + 2 * np.log(density.stds)
    each = g.add("Add", g.add("Mul", standardized, standardized), constants)
    log_normal = g.add("Mul", g.add("ReduceSum", each, [3], keepdims=0), -0.5)
    joint = g.add("Add", g.add("Unsqueeze", density.log_weights, [1]), log_normal)
    # The log of a sum of exponentials, without overflow.
    largest = g.add("ReduceMax", joint, [2], keepdims=1)
    total = g.add("ReduceSum", g.add("Exp", g.add("Sub", joint, largest)), [2], keepdims=0)
    return g.add("Add", g.add("Log", total), g.add("Squeeze", largest, [2]))


def zscore(g: Builder, x: Value, count: Value | list[int]) -> Value:
    """`score.zscore` within each state's candidates: [B, C]."""
    limit = g.add("Sqrt", g.add("Cast", g.add("Sub", count, [1]), to=TYPES["float32"]))
    z = _standardized(g, x, *_moments(g, x))
    return g.add("Min", g.add("Max", z, g.add("Neg", limit)), limit)


def _moments(g: Builder, x: Value) -> tuple[Value, Value]:
    """`score.moments` of [B, C]: both [B, 1]."""
    first = g.add("Slice", x, [0], [1], [1])
    mean, std = _mean_and_std(g, g.add("Sub", x, first))
    return g.add("Add", first, mean), g.add("Max", std, MIN_STD)


def _mean_and_std(g: Builder, x: Value) -> tuple[Value, Value]:
    """Mean and population standard deviation over axis 1, which stays with size 1."""
    mean = g.add("ReduceMean", x, [1], keepdims=1)
    off = g.add("Sub", x, mean)
    return mean, g.add("Sqrt", g.add("ReduceMean", g.add("Mul", off, off), [1], keepdims=1))


def _standardized(g: Builder, x: Value, mean: Value, std: Value) -> Value:
    return g.add("Div", g.add("Sub", x, mean), std)


def _collapse_distance(g: Builder, action: Value, behavior: Components) -> Value:
    """`audits.collapse_distance` of an action [B, 1, A]: [B]."""
    away = g.add("Sub", behavior.means, action)
    squares = g.add("ReduceSum", g.add("Mul", away, away), [2], keepdims=0)
    return g.add("ReduceMin", g.add("Sqrt", squares), [1], keepdims=0)


def _is_finite(g: Builder, x: Value) -> Value:
    return g.add("LessOrEqual", g.add("Abs", x), LARGEST)


def _of_shape(g: Builder, given: Value, like: Value) -> Value:
    """The input, of which another shape is refused: it would be broadcast in silence."""
    # Reshape refuses another number, and Concat, which passes over what is empty, another shape.
    shaped = g.add("Reshape", given, g.add("Shape", like))
    both = g.add("Concat", g.add("Unsqueeze", given, [0]), g.add("Unsqueeze", shaped, [0]), axis=0)
    return g.add("Gather", both, np.zeros((), np.int64), axis=0)


def _where_finite(g: Builder, checked: Value, action: Value) -> Value:
    """The action [B, A] where all of `checked` [B, X] is finite, else NaN.

    `policy.decide` raises an error there; a graph has no other way to refuse.
    """
    each = g.add("Cast", _is_finite(g, checked), to=TYPES["int64"])
    sound = g.add("Equal", g.add("ReduceMin", each, [1], keepdims=1), [1])
    return g.add("Where", sound, action, float("nan"))


def _sizes(g: Builder, candidates: Value, knobs: Knobs, fixed: Fixed | None) -> Sizes:
    """Sizes that are known when the graph runs, or now where they are constant."""
    if fixed is not None:
        count, k = fixed.n + (knobs.anchor != "none"), knobs.k_smooth
        return Sizes([fixed.batch, 1, count], [count], [k], [min(k, count)])
    batch, count = (g.add("Shape", candidates, start=axis, end=axis + 1) for axis in (0, 1))
    each_row = g.add("Concat", batch, [1], count, axis=0)
    return Sizes(each_row, count, "k_smooth", g.add("Min", "k_smooth", count))
