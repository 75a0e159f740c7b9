"""SSAR on TD3+BC: how near the data the actor must stay is learnt for each state.

Luo, Xie, Wang and Huang, Learning to Trust Bellman Updates: Selective State-Adaptive Regularization
for Offline RL, 2025 (arXiv:2505.19923). The weight of (pi(s) - a)^2 is a network beta(s) that grows
where the actor is further from the data than a threshold and shrinks where it is nearer; only good
actions count. The threshold is (noise n)^2, and n rises step by step until the actor keeps to it.

As in the authors' public code: beta within (0, 1.5 / alpha) and 1 / alpha at first, its gradient
clipped at 0.5, squared distances above 1 cut off, actions selected by IQL's advantage, critics with
layer norms. Otherwise here: norms follow the activations, where theirs come before; the code
selects by the return of whole episodes on some tasks, AntMaze's among them, which a minibatch of
transitions does not tell, so all tasks select by advantage, and AntMaze's expectile of 0.9 is IQL's
and not published for SSAR; an action is selected where the lower target critic is above V, where
theirs takes the critics themselves and drops what is below V; beta has the layers of the other
networks and begins as they do, not three of 512 with Xavier's weights; its step size and the period
of n are those of 10^6 updates times and divided by ten, so that 10^5 updates take them as far.
Which selection the paper's own tables used on tasks without a public configuration (Maze2D) could
not be verified.
"""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from gemrl.methods import iql
from gemrl.methods.actor_critic import next_key
from gemrl.methods.implicit import Critics, ImplicitConfig, new_implicit, update_implicit
from gemrl.methods.networks import Critic, Layers
from gemrl.methods.protocol import (
    ANCHOR_ALONE,
    MAIN,
    Batch,
    Method,
    Metrics,
    Models,
    Phase,
    descend,
)
from gemrl.methods.samplers import Deterministic
from gemrl.methods.td3 import Td3State, td3_init, td3_models, td3_step
from gemrl.methods.td3bc import Td3BcConfig, climb, twin_target

# beta's last bias and ceiling: its sigmoid begins at 2/3, which makes 1 / alpha.
FIRST_LOGIT, CEILING = 0.6931, 1.5
BETA_CLIP = 0.5
RISES = 10
"""Steps from the first n to the last."""


@dataclass(frozen=True)
class SsarConfig(Td3BcConfig):
    """Settings of SSAR."""

    expectile: float = 0.7
    """Expectile of the value that actions are selected by."""
    selection_steps: int | None = None
    """Updates of the critics that select actions, before the main phase; by default as many as
    `steps`."""
    everywhere: bool = False
    """Keep the actor near all actions, and not near the selected ones alone."""
    noise: float = 0.1
    """The distance that n = 1 stands for."""
    n_start: float = 1.0
    """The threshold's n at first."""
    n_end: float = 3.0
    """Its largest n."""
    n_every: int = 5_000
    """Updates between two rises of n."""
    beta_learning_rate: float = 3e-7
    """Adam's step size for beta."""

    published: ClassVar = {
        "halfcheetah-medium-expert": {"n_end": 1.5, "everywhere": True},
        "hopper-medium-expert": {"n_end": 1.5, "expectile": 0.5},
        "walker2d-medium-expert": {"n_end": 1.5},
        "halfcheetah-expert": {"n_end": 1.5},
        "hopper-expert": {"n_end": 1.5},
        "walker2d-expert": {"n_end": 1.5},
        "antmaze": {"n_start": 5.0, "n_end": 5.0, "expectile": 0.9, "everywhere": True},
        "antmaze-umaze": {"n_start": 1.0, "n_end": 5.0, "expectile": 0.9, "everywhere": True},
        "antmaze-umaze-diverse": {"expectile": 0.9, "everywhere": True},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("expectile", 0 < self.expectile < 1, "between 0 and 1")
        self.require("selection_steps", (self.selection_steps or 0) >= 0, "at least 0")
        self.require("noise", self.noise > 0, "above 0")
        self.require("n_start", 0 < self.n_start <= self.n_end, "above 0 and at most n_end")
        self.require("n_every", self.n_every >= 1, "at least 1")
        self.require("beta_learning_rate", self.beta_learning_rate > 0, "above 0")

    @property
    def judge(self) -> ImplicitConfig:
        """Settings of the critics that select actions."""
        shared = ("batch_size", "learning_rate", "hidden", "critics", "discount", "polyak")
        values = {name: getattr(self, name) for name in shared}
        return ImplicitConfig(expectile=self.expectile, **values)

    def beta_optimizer(self) -> optax.GradientTransformation:
        """The optimizer of beta."""
        return optax.chain(
            optax.clip_by_global_norm(BETA_CLIP), optax.adam(self.beta_learning_rate)
        )


class SsarState(eqx.Module):
    """What training carries from update to update."""

    td3: Td3State
    judge: Critics
    """They select actions."""
    beta: Layers
    beta_opt_state: optax.OptState
    n: Float[Array, ""]
    rising: Array
    """Whether n may still rise."""


def init(config: SsarConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]) -> SsarState:
    """Fresh networks and optimizers."""
    td3_key, judge_key, beta_key = jax.random.split(key, 3)
    learner = iql.init_critics(config.judge.iql(), obs_dim, action_dim, judge_key)
    beta = Layers((obs_dim, *config.hidden, 1), beta_key)
    beta = eqx.tree_at(lambda net: net.layers[-1].bias, beta, jnp.array([FIRST_LOGIT]))
    return SsarState(
        td3=td3_init(config, obs_dim, action_dim, td3_key, normed=True),
        judge=new_implicit(learner, config.judge),
        beta=beta,
        beta_opt_state=config.beta_optimizer().init(beta),  # pyright: ignore[reportArgumentType]
        n=jnp.float32(config.n_start),
        rising=jnp.array(True),
    )


def coefficient(beta: Layers, obs: Float[Array, "b s"], config: SsarConfig) -> Float[Array, " b"]:
    """How much each state's distance to the data weighs."""
    return CEILING / config.alpha * jax.nn.sigmoid(beta(obs)[:, 0])


def selected(state: SsarState, batch: Batch) -> Float[Array, " b"]:
    """1 for actions that IQL's critics prefer to the state's value, 0 for others."""
    return (iql.advantage(state.judge.learner, state.judge.targets, batch) > 0).astype(jnp.float32)


def actor_loss(
    actor: Deterministic,
    critics: tuple[Critic, ...],
    weight: Float[Array, " b"],
    batch: Batch,
) -> tuple[Float[Array, ""], Metrics]:
    """-Q / E|Q| + beta(s) (pi - a)^2."""
    action = actor.mean(batch.obs)
    distance = (action - batch.action) ** 2
    loss = climb(critics, batch.obs, action) + jnp.mean(weight[:, None] * distance)
    return loss, {"actor/loss": loss, "actor/distance": jnp.mean(distance)}


def update_judge(state: SsarState, batch: Batch, config: SsarConfig) -> tuple[SsarState, Metrics]:
    """One step of the critics and the value that select actions."""
    judge, metrics = update_implicit(state.judge, batch, config.judge)
    return eqx.tree_at(lambda s: s.judge, state, judge), metrics


def update(state: SsarState, batch: Batch, config: SsarConfig) -> tuple[SsarState, Metrics]:
    """One step of TD3, and of beta and n when it is the actor's turn."""
    words, key = next_key(state.td3.key)
    trust = selected(state, batch)
    weight = coefficient(state.beta, batch.obs, config)
    weight = weight if config.everywhere else weight * trust
    td3, metrics = td3_step(
        state.td3,
        words,
        batch,
        twin_target(state.td3, batch, key, config),
        lambda actor, critics: actor_loss(actor, critics, weight, batch),
        config,
    )
    distance = (state.td3.actor.mean(batch.obs) - batch.action) ** 2
    room = (config.noise * state.n) ** 2 - jnp.mean(jnp.minimum(distance, 1.0), axis=1)

    def beta_loss(beta: Layers) -> tuple[Float[Array, ""], Metrics]:
        found = coefficient(beta, batch.obs, config) * trust
        return jnp.mean(room * found), {"beta/mean": jnp.mean(found)}

    beta, beta_opt_state, beta_metrics = descend(
        beta_loss, state.beta, state.beta_opt_state, config.beta_optimizer()
    )
    turn = td3.count % config.actor_every == 0
    beta, beta_opt_state = jax.tree.map(
        lambda old, new: jnp.where(turn, new, old),
        (state.beta, state.beta_opt_state),
        (beta, beta_opt_state),
    )
    looked = td3.count % config.n_every == 0
    kept_to = jnp.sum(room * trust) > 0
    rising = state.rising & ~(looked & kept_to)
    raised = jnp.minimum(state.n + (config.n_end - config.n_start) / RISES, config.n_end)
    n = jnp.where(looked & rising, raised, state.n)
    metrics |= beta_metrics | {"beta/n": n, "beta/selected": jnp.mean(trust)}
    return SsarState(
        td3=td3,
        judge=state.judge,
        beta=beta,
        beta_opt_state=beta_opt_state,
        n=n,
        rising=rising,
    ), metrics


def phases(config: SsarConfig) -> tuple[Phase, ...]:
    """Critics that select actions, then the rest."""
    first = config.steps if config.selection_steps is None else config.selection_steps
    return (Phase("selection", first, update_judge), Phase(MAIN, config.steps, update))


def models(state: SsarState) -> Models:
    """The actor and the critics."""
    return td3_models(state.td3)


METHOD = Method("ssar", SsarConfig, init, phases, models, deploy=ANCHOR_ALONE)
