"""GEM's decision as an ONNX graph: `gemrl.decide.select` once more, with noise as an input.

Each function mirrors one of `gemrl.maths` or `gemrl.methods.networks`, formula by formula and in
the same order, on a batch of states: B states, C candidates (anchor first), A action dimensions, K
components, M critics. The tests compare the two.
"""

from typing import NamedTuple

import numpy as np

from gemrl.decide.dense import scales_of
from gemrl.decide.knobs import Knobs
from gemrl.deploy.export.builder import TYPES, Builder, Value
from gemrl.deploy.export.contract import Fixed
from gemrl.errors import BundleError
from gemrl.learn.spec import Spec
from gemrl.maths.audits import VIOLATION_Z
from gemrl.maths.score import MIN_STD
from gemrl.methods.networks import Critic, Layers, Linear, MixtureNet
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


class Components(NamedTuple):
    """A mixture at each state, in environment units."""

    log_weights: Value
    """[B, K]"""
    means: Value
    """[B, K, A]"""
    stds: np.ndarray
    """[K, A] They do not depend on the state."""


def decision(
    g: Builder, models: Models, spec: Spec, knobs: Knobs, fixed: Fixed | None
) -> dict[str, Value]:
    """Add a whole decision to the graph; gives its outputs by name."""
    proposal = require_known(models)
    scaled = g.add("Div", g.add("Sub", "observation", spec.obs_mean), spec.obs_std)
    actor = mixture(g, scaled, proposal, spec)
    if not models.critics:
        anchor = g.add("Squeeze", _clipped(g, _anchor(g, actor, knobs.anchor), spec), [1])
        return {"action": _where_finite(g, anchor, anchor)}
    behavior = None if models.behavior is None else mixture(g, scaled, models.behavior, spec)
    candidates = propose(g, actor, behavior, spec, knobs, fixed)
    sizes = _sizes(g, candidates, knobs, fixed)
    q = critic_values(g, models.critics, scaled, candidates, sizes, spec)
    return rank(g, candidates, sizes, q, behavior, spec, knobs)


def require_known(models: Models) -> MixtureNet:
    """The proposal; refuses networks whose formulas are not those that are written down here."""
    actor = models.actor
    densities = [] if models.behavior is None else [models.behavior]
    stacks = [net.net for net in (actor, *densities, *models.critics) if hasattr(net, "net")]  # pyright: ignore[reportAttributeAccessIssue]
    known = (
        all(type(net) is MixtureNet for net in (actor, *densities))
        and all(type(critic) is Critic for critic in models.critics)
        and all(type(stack) is Layers and stack.is_plain for stack in stacks)
        and all(type(layer) is Linear for stack in stacks for layer in stack.layers)
    )
    if not known or not isinstance(actor, MixtureNet):
        raise BundleError(
            "export knows the networks of gemrl.methods.networks (MixtureNet, Critic), and this "
            "policy has others: it cannot be exported"
        )
    if models.behavior is not None and not models.critics:
        raise BundleError("export knows no policy that has a behaviour density and no critics")
    return actor


def mixture(g: Builder, scaled: Value, net: MixtureNet, spec: Spec) -> Components:
    """`MixtureNet` and `Mixture.affine`."""
    components, dims = net.log_std.shape
    out = _layers(g, scaled, net.net)
    gates = g.add("Slice", out, [0], [components], [1])
    means = g.add("Slice", out, [components], [components * (1 + dims)], [1])
    means = g.add("Reshape", g.add("Tanh", means), [-1, components, dims])
    means = g.add("Add", g.add("Mul", means, spec.action_half), spec.action_middle)
    # The network itself says how its parameter becomes a deviation.
    scales = scales_of(spec)
    anywhere = net(scales.obs_mean).affine(scales.half, scales.middle)
    return Components(g.add("LogSoftmax", gates, axis=1), means, np.asarray(anywhere.stds))


def propose(
    g: Builder,
    actor: Components,
    behavior: Components | None,
    spec: Spec,
    knobs: Knobs,
    fixed: Fixed | None,
) -> Value:
    """`select.propose`: the candidates [B, C, A], anchor first, clipped."""
    parts = [] if knobs.anchor == "none" else [_anchor(g, actor, knobs.anchor)]
    if fixed is None or fixed.n > 0:
        source = behavior if knobs.source == "behavior" else actor
        assert source is not None  # The policy refuses this knob where it has no density.
        parts.append(_samples(g, source, unimodal=knobs.source == "unimodal"))
    together = parts[0] if len(parts) == 1 else g.add("Concat", *parts, axis=1)
    return _clipped(g, together, spec)


def _samples(g: Builder, source: Components, unimodal: bool) -> Value:
    """`sample_from_noise` of a mixture, or of its heaviest component alone: [B, N, A]."""
    if unimodal:
        component = _heaviest(g, source)
    else:
        cumulative = g.add("CumSum", g.add("Exp", source.log_weights), np.array(1))
        gate, edges = g.add("Unsqueeze", "gate_noise", [2]), g.add("Unsqueeze", cumulative, [1])
        below = g.add("Cast", g.add("GreaterOrEqual", gate, edges), to=TYPES["int64"])
        counted = g.add("ReduceSum", below, [2], keepdims=0)
        component = g.add("Min", counted, np.array(len(source.stds) - 1))
    means, stds = _take(g, source.means, component), g.add("Gather", source.stds, component)
    return g.add("Add", means, g.add("Mul", stds, "normal_noise"))


def _anchor(g: Builder, actor: Components, kind: str) -> Value:
    """`mode` or `barycenter`: [B, 1, A]."""
    if kind == "mode":
        return _take(g, actor.means, _heaviest(g, actor))
    weights = g.add("Unsqueeze", g.add("Exp", actor.log_weights), [2])
    return g.add("ReduceSum", g.add("Mul", weights, actor.means), [1], keepdims=1)


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
        # The state's part of the first layer is computed once, for all candidates.
        state = g.add("Unsqueeze", _linear(g, scaled, critic.from_state), [1])
        first = g.add("Add", state, g.add("MatMul", unit, np.asarray(critic.from_action)))
        width = critic.from_action.shape[1]
        flat = g.add("Reshape", g.add("Relu", first), [-1, width])
        values.append(g.add("Reshape", _layers(g, flat, critic.net), sizes.each_row))
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

    # TopK takes the lower index of equal scores. -0.0 must tie with 0.0, and a comparison with NaN
    # must not reach it; an action from such scores is refused below.
    usable = g.add("And", _is_finite(g, score), g.add("Not", g.add("Equal", score, 0.0)))
    held = g.add("Where", usable, score, 0.0)
    _, best = g.add_several("TopK", 2, held, sizes.best, axis=1, largest=1, sorted=1)
    chosen = g.add("Slice", best, [0], [1], [1])

    def of_chosen(each: Value) -> Value:
        return g.add("Squeeze", g.add("GatherElements", each, chosen, axis=1), [1])

    winner = _take(g, candidates, chosen)
    averaged = g.add("ReduceMean", _take(g, candidates, best), [1], keepdims=1)
    # A mean of actions at a bound can pass it by rounding.
    executed = _clipped(g, averaged, spec)
    made = {
        "action": _where_finite(g, score, g.add("Squeeze", executed, [1])),
        "chosen": g.add("Squeeze", chosen, [1]),
        "score": of_chosen(score),
        "lcb": of_chosen(lcb),
    }
    if behavior is None or log_support is None or support_z is None:
        return made

    support_of_executed = log_prob(g, behavior, executed)
    z_of_executed = _standardized(g, support_of_executed, *_moments(g, log_support))
    alone = g.add("Equal", sizes.k_smooth, [1])
    made |= {"log_support": of_chosen(log_support), "support_z": of_chosen(support_z)}
    for name, value in (("log_support", support_of_executed), ("support_z", z_of_executed)):
        # One candidate alone is executed as it is, with what is known of it.
        squeezed = g.add("Squeeze", value, [1])
        made[f"executed_{name}"] = g.add("Where", alone, made[name], squeezed)
    for prefix, action in (("", winner), ("executed_", executed)):
        z = made[f"{prefix}support_z"]
        made[f"{prefix}violation"] = g.add("Less", z, VIOLATION_Z)
        made[f"{prefix}collapse_dist"] = _collapse_distance(g, action, behavior)
    return made


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


def _layers(g: Builder, x: Value, layers: Layers) -> Value:
    """`Layers` on rows [R, I]."""
    for number, layer in enumerate(layers.layers):
        x = _linear(g, g.add("Relu", x) if number else x, layer)
    return x


def _linear(g: Builder, x: Value, layer: Linear) -> Value:
    return g.add("Gemm", x, np.asarray(layer.weight), np.asarray(layer.bias))


def _heaviest(g: Builder, components: Components) -> Value:
    """Index of the heaviest component [B, 1], the first of equal ones."""
    return g.add("ArgMax", components.log_weights, axis=1, keepdims=1)


def _take(g: Builder, rows: Value, index: Value) -> Value:
    """`rows[b, index[b]]`, from [B, R, A] and [B, I]: [B, I, A]."""
    return g.add("GatherND", rows, g.add("Unsqueeze", index, [2]), batch_dims=1)


def _clipped(g: Builder, actions: Value, spec: Spec) -> Value:
    return g.add("Min", g.add("Max", actions, spec.action_low), spec.action_high)


def _is_finite(g: Builder, x: Value) -> Value:
    return g.add("LessOrEqual", g.add("Abs", x), LARGEST)


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
