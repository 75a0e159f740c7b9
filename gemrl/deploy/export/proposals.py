"""Candidates as a part of the graph: mixtures, and the samplers that make an action of noise.

Each function mirrors one of `gemrl.maths.mixture`, `gemrl.methods.samplers` or `generative`. B
states, C candidates (anchor first), N of them samples, A action dimensions, K components.
"""

from typing import NamedTuple

import numpy as np

from gemrl.decide.dense import scales_of
from gemrl.decide.knobs import Knobs
from gemrl.deploy.export.builder import TYPES, Builder, Value
from gemrl.deploy.export.contract import Fixed
from gemrl.deploy.export.layers import body, layers, linear, require, unknown
from gemrl.deploy.export.transformer import last_action
from gemrl.learn.spec import Spec
from gemrl.methods.dt import DecisionTransformer
from gemrl.methods.generative import Diffusion, Field, Flow, OneStep, schedule
from gemrl.methods.networks import MixtureNet
from gemrl.methods.protocol import Models
from gemrl.methods.samplers import Deterministic, Sampler, TanhGaussian


class Components(NamedTuple):
    """A mixture at each state, in environment units."""

    log_weights: Value
    """[B, K]"""
    means: Value
    """[B, K, A]"""
    stds: np.ndarray
    """[K, A] They do not depend on the state."""


def propose(
    g: Builder,
    models: Models,
    behavior: Components | None,
    scaled: Value,
    spec: Spec,
    knobs: Knobs,
    fixed: Fixed | None,
) -> Value:
    """`select.propose`: the candidates [B, C, A], anchor first, clipped."""
    anchored = knobs.anchor != "none"
    # Without critics nothing could choose among samples.
    sampled = bool(models.critics) and (fixed is None or fixed.n > 0)
    cloned = sampled and knobs.source == "behavior"
    parts: list[Value] = []
    if isinstance(models.actor, DecisionTransformer):
        parts.append(_in_units(g, last_action(g, models.actor, scaled, spec.obs_dim), spec))
    elif isinstance(models.actor, Sampler):
        noise = [_silence(g, models.actor, fixed)] if anchored else []
        noise += ["normal_noise"] if sampled and not cloned else []
        if noise:
            parts.append(_in_units(g, sample(g, models.actor, scaled, _joined(g, noise)), spec))
    else:
        actor = mixture(g, scaled, models.actor, spec)
        if anchored:
            parts.append(_anchor(g, actor, knobs.anchor))
        if sampled and not cloned:
            parts.append(_samples(g, actor, unimodal=knobs.source == "unimodal"))
    if cloned:
        assert behavior is not None  # The policy refuses this knob where it has no density.
        parts.append(_samples(g, behavior, unimodal=False))
    return clipped(g, _joined(g, parts), spec.action_low, spec.action_high)


def mixture(g: Builder, scaled: Value, net: MixtureNet, spec: Spec) -> Components:
    """`MixtureNet` and `Mixture.affine`."""
    require(net, MixtureNet)
    components, dims = net.log_std.shape
    out = layers(g, scaled, net.net)
    gates = g.add("Slice", out, [0], [components], [1])
    means = g.add("Slice", out, [components], [components * (1 + dims)], [1])
    means = g.add("Reshape", g.add("Tanh", means), [-1, components, dims])
    means = _in_units(g, means, spec)
    # The network itself says how its parameter becomes a deviation.
    scales = scales_of(spec)
    anywhere = net(scales.obs_mean).affine(scales.half, scales.middle)
    return Components(g.add("LogSoftmax", gates, axis=1), means, np.asarray(anywhere.stds))


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
    means, stds = take(g, source.means, component), g.add("Gather", source.stds, component)
    return g.add("Add", means, g.add("Mul", stds, "normal_noise"))


def _anchor(g: Builder, actor: Components, kind: str) -> Value:
    """`mode` or `barycenter`: [B, 1, A]."""
    if kind == "mode":
        return take(g, actor.means, _heaviest(g, actor))
    weights = g.add("Unsqueeze", g.add("Exp", actor.log_weights), [2])
    return g.add("ReduceSum", g.add("Mul", weights, actor.means), [1], keepdims=1)


def _heaviest(g: Builder, components: Components) -> Value:
    """Index of the heaviest component [B, 1], the first of equal ones."""
    return g.add("ArgMax", components.log_weights, axis=1, keepdims=1)


def sample(g: Builder, sampler: Sampler, scaled: Value, noise: Value) -> Value:
    """The actions in [-1, 1] that a sampler makes of noise [B, C, noise_size]: [B, C, A]."""
    if type(sampler) is Deterministic:
        mean = g.add("Unsqueeze", g.add("Tanh", layers(g, scaled, sampler.net)), [1])
        return _unit(g, g.add("Add", mean, g.add("Mul", noise, sampler.spread)))
    if type(sampler) is TanhGaussian:
        return _tanh_gaussian(g, sampler, scaled, noise)
    if type(sampler) is OneStep:
        return _unit(g, _field(g, sampler.net, _of_state(g, sampler.net, scaled), noise, None))
    if type(sampler) is Flow:
        return _flow(g, sampler, scaled, noise)
    if type(sampler) is Diffusion:
        return _diffusion(g, sampler, scaled, noise)
    raise unknown(type(sampler).__name__)


def _tanh_gaussian(g: Builder, sampler: TanhGaussian, scaled: Value, noise: Value) -> Value:
    dims, out = sampler.noise_size, layers(g, scaled, sampler.net)
    mean = g.add("Slice", out, [0], [dims], [1])
    log_std = g.add("Slice", out, [dims], [2 * dims], [1])
    std = g.add("Exp", clipped(g, log_std, sampler.log_std_min, sampler.log_std_max))
    mean, std = (g.add("Unsqueeze", x, [1]) for x in (mean, std))
    return g.add("Tanh", g.add("Add", mean, g.add("Mul", std, noise)))


def _flow(g: Builder, flow: Flow, scaled: Value, noise: Value) -> Value:
    state, x = _of_state(g, flow.net, scaled), noise
    for step in range(flow.steps):
        time = np.array([step / flow.steps], np.float32)
        velocity = _field(g, flow.net, state, x, time)
        x = g.add("Add", x, g.add("Div", velocity, float(flow.steps)))
    return _unit(g, x)


def _diffusion(g: Builder, diffusion: Diffusion, scaled: Value, noise: Value) -> Value:
    net, steps, clip_start = diffusion.net, diffusion.steps, diffusion.clip_start
    every = schedule(steps, clip_start)
    kept = every.kept.astype(np.float32)

    state = _of_state(g, net, scaled)
    x, *fresh = g.add_several("Split", steps, noise, [net.action_dim] * steps, axis=2)
    for place in reversed(range(steps)):
        time = np.eye(steps, dtype=np.float32)[place]
        seen = g.add("Mul", _field(g, net, state, x, time), float(np.sqrt(1 - kept[place])))
        start = g.add("Div", g.add("Sub", x, seen), float(np.sqrt(kept[place])))
        start = _unit(g, start) if clip_start else start
        start = g.add("Mul", start, float(every.of_start[place]))
        x = g.add("Add", start, g.add("Mul", x, float(every.of_now[place])))
        if place > 0:  # The last step has no noise.
            added = g.add("Mul", fresh[steps - 1 - place], float(every.std[place]))
            x = g.add("Add", x, added)
        x = x if clip_start else _unit(g, x)
    return _unit(g, x)


def _of_state(g: Builder, net: Field, scaled: Value) -> Value:
    """The state's part of a field's first layer [B, 1, H], for all candidates and steps."""
    require(net, Field)
    return g.add("Unsqueeze", linear(g, scaled, net.from_state), [1])


def _field(g: Builder, net: Field, state: Value, x: Value, time: np.ndarray | None) -> Value:
    """`Field` at actions [B, C, A] and one time for all: [B, C, A]."""
    first = g.add("Add", state, g.add("MatMul", x, np.asarray(net.from_action)))
    if net.from_time is not None and time is not None:
        first = g.add("Add", first, time @ np.asarray(net.from_time))
    rows = g.add("Reshape", first, [-1, net.from_action.shape[1]])
    return g.add("Reshape", body(g, rows, net.body), g.add("Shape", x))


def _silence(g: Builder, sampler: Sampler, fixed: Fixed | None) -> Value:
    """The noise of the anchors, zeros [B, 1, noise_size]."""
    if fixed is None:
        states = g.add("Shape", "observation", start=0, end=1)
        shape = g.add("Concat", states, [1, 1], axis=0)
    else:
        shape = [fixed.batch, 1, 1]
    return g.add("Expand", np.zeros((1, 1, sampler.noise_size), np.float32), shape)


def _joined(g: Builder, parts: list[Value]) -> Value:
    """Several [B, X, A] as one."""
    return parts[0] if len(parts) == 1 else g.add("Concat", *parts, axis=1)


def _in_units(g: Builder, x: Value, spec: Spec) -> Value:
    """Actions in [-1, 1] in environment units."""
    return g.add("Add", g.add("Mul", x, spec.action_half), spec.action_middle)


def _unit(g: Builder, x: Value) -> Value:
    return clipped(g, x, -1.0, 1.0)


def clipped(g: Builder, x: Value, low: np.ndarray | float, high: np.ndarray | float) -> Value:
    """X within bounds."""
    return g.add("Min", g.add("Max", x, low), high)


def take(g: Builder, rows: Value, index: Value) -> Value:
    """`rows[b, index[b]]`, from [B, R, A] and [B, I]: [B, I, A]."""
    return g.add("GatherND", rows, g.add("Unsqueeze", index, [2]), batch_dims=1)
