"""Diffusion-QL: a diffusion policy that climbs the critic through its own denoising steps.

Wang, Hunt and Zhou, Diffusion Policies as an Expressive Policy Class for Offline Reinforcement
Learning, 2022 (arXiv:2208.06193). The policy's loss is the denoising loss on the data's actions
and -eta Q of an action that it draws, whose gradient passes through all T steps. Q is of one critic
picked anew at every update, divided by the other one's mean |Q|. Targets take actions from an
average of the policy, and the smaller of the two target critics; with `max_q_backup` each critic's
best of 10 such actions.

Kept from the paper and the authors' code: T = 5 with the variance-preserving schedule, the clipped
start in every step, Mish networks of three layers, eta, gradient clipping, step size and max-Q
backup per task, an average at rate 0.005 every 5 updates from the 1000th on. At run time 50 samples
are drawn, and one of them in proportion to exp Q by the target critics' minimum, in units of the
paper's rewards: the knobs `n` and `temperature`. Decided otherwise: time enters by a learned row a
step, where theirs passes a sinusoidal embedding through a small network; step sizes do not decay;
locomotion's rewards are scaled as everywhere in the project, theirs not at all (the division by |Q|
takes the scale out of the policy's loss). The paper has no Maze2D: it takes the defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, UInt32

from gemrl.methods.actor_critic import (
    BACKUP_ACTIONS,
    TunedByTaskConfig,
    bootstrap,
    new_critics,
    new_key,
    next_key,
    regression,
    values,
)
from gemrl.methods.generative import Diffusion, diffusion_loss, plain_field
from gemrl.methods.networks import Critic
from gemrl.methods.protocol import (
    Batch,
    Method,
    Metrics,
    Models,
    descend,
    follow,
    one_phase,
)

ANTMAZE = {"max_q_backup": True, "reward_shift": 0.5, "reward_scale": 4.0}
"""The paper's rewards there are 4 (r - 1/2), and the project's r - 1."""


@dataclass(frozen=True)
class DiffusionQlConfig(TunedByTaskConfig):
    """Settings of Diffusion-QL."""

    hidden: tuple[int, ...] = (256, 256, 256)
    """Width of each hidden layer."""
    eta: float = 1.0
    """How much the critic counts against the data's actions."""
    grad_norm: float = 5.0
    """Largest norm of a network's gradient; longer ones are scaled back to it."""
    max_q_backup: bool = False
    """Targets from the best of 10 actions instead of one."""
    diffusion_steps: int = 5
    """Denoising steps (T)."""
    average_rate: float = 0.005
    """Rate at which the policy's average follows it."""
    average_every: int = 5
    """Updates between steps of the average."""
    average_start: int = 1000
    """Updates before the average first moves."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "halfcheetah-medium": {"grad_norm": 9.0},
        "hopper-medium": {"grad_norm": 9.0},
        "walker2d-medium": {"grad_norm": 1.0},
        "halfcheetah-medium-replay": {"grad_norm": 2.0},
        "hopper-medium-replay": {"grad_norm": 4.0},
        "walker2d-medium-replay": {"grad_norm": 4.0},
        "halfcheetah-medium-expert": {"grad_norm": 7.0},
        "hopper-medium-expert": {"grad_norm": 5.0},
        "walker2d-medium-expert": {"grad_norm": 5.0},
        "antmaze-umaze": ANTMAZE | {"eta": 0.5, "grad_norm": 2.0, "max_q_backup": False},
        "antmaze-umaze-diverse": ANTMAZE | {"eta": 2.0, "grad_norm": 3.0},
        "antmaze-medium-play": ANTMAZE
        | {"eta": 2.0, "grad_norm": 2.0, "actor_learning_rate": 1e-3},
        "antmaze-medium-diverse": ANTMAZE | {"eta": 3.0, "grad_norm": 1.0},
        "antmaze-large-play": ANTMAZE | {"eta": 4.5, "grad_norm": 10.0},
        "antmaze-large-diverse": ANTMAZE | {"eta": 3.5, "grad_norm": 7.0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("critics", self.critics == 2, "2")
        self.require("eta", self.eta >= 0, "at least 0")
        self.require("grad_norm", self.grad_norm > 0, "above 0")
        self.require("diffusion_steps", self.diffusion_steps >= 1, "at least 1")
        self.require("average_rate", 0 < self.average_rate <= 1, "above 0 and at most 1")
        self.require("average_every", self.average_every >= 1, "at least 1")
        self.require("average_start", self.average_start >= 0, "at least 0")

    def optimizer(self) -> optax.GradientTransformation:
        """Adam on gradients of bounded norm."""
        return optax.chain(optax.clip_by_global_norm(self.grad_norm), super().optimizer())

    def actor_optimizer(self) -> optax.GradientTransformation:
        """The same with the actor's rate."""
        return optax.chain(optax.clip_by_global_norm(self.grad_norm), super().actor_optimizer())


class DiffusionQlState(eqx.Module):
    """What training carries from update to update."""

    critics: tuple[Critic, ...]
    target_critics: tuple[Critic, ...]
    actor: Diffusion
    average: Diffusion
    critic_opt_state: optax.OptState
    actor_opt_state: optax.OptState
    count: Int[Array, ""]
    key: UInt32[Array, "2"]


def init(
    config: DiffusionQlConfig, obs_dim: int, action_dim: int, key: Key[Array, ""]
) -> DiffusionQlState:
    """Fresh networks and optimizers."""
    critic_key, actor_key, noise_key = jax.random.split(key, 3)
    critics = new_critics(config, obs_dim, action_dim, critic_key, activation="mish")
    steps = config.diffusion_steps
    field = plain_field(
        obs_dim, action_dim, config.hidden, actor_key, activation="mish", times=steps
    )
    actor = Diffusion(field, steps, clip_start=True)
    return DiffusionQlState(
        critics=critics,
        target_critics=critics,
        actor=actor,
        average=actor,
        critic_opt_state=config.optimizer().init(critics),  # pyright: ignore[reportArgumentType]
        actor_opt_state=config.actor_optimizer().init(actor),  # pyright: ignore[reportArgumentType]
        count=jnp.zeros((), jnp.int32),
        key=new_key(noise_key),
    )


def backup(
    state: DiffusionQlState, batch: Batch, key: Key[Array, ""], config: DiffusionQlConfig
) -> Float[Array, " b"]:
    """The critics' target, by actions of the averaged policy at the next state."""
    count = BACKUP_ACTIONS if config.max_q_backup else 1
    noise = jax.random.normal(key, (count, len(batch.reward), state.average.noise_size))
    action = state.average(batch.next_obs, noise)
    each_best = jnp.max(values(state.target_critics, batch.next_obs, action), axis=1)
    return bootstrap(config.rewarded(batch), jnp.min(each_best, axis=0), config)


def actor_loss(
    actor: Diffusion,
    critics: tuple[Critic, ...],
    batch: Batch,
    key: Key[Array, ""],
    config: DiffusionQlConfig,
) -> tuple[Float[Array, ""], Metrics]:
    """The denoising loss and -eta Q / E|Q of the other critic|."""
    cloning_key, noise_key, critic_key = jax.random.split(key, 3)
    cloning = diffusion_loss(actor, batch, cloning_key)
    noise = jax.random.normal(noise_key, (len(batch.action), actor.noise_size))
    q = values(critics, batch.obs, actor(batch.obs, noise))
    climbed, other = jnp.where(jax.random.bernoulli(critic_key), q, q[::-1])
    size = jax.lax.stop_gradient(jnp.mean(jnp.abs(other)))
    loss = cloning - config.eta * jnp.mean(climbed) / size
    return loss, {"actor/loss": loss, "actor/cloning": cloning}


def update(
    state: DiffusionQlState, batch: Batch, config: DiffusionQlConfig
) -> tuple[DiffusionQlState, Metrics]:
    """One step of the critics, then of the policy, then of targets and average."""
    words, key = next_key(state.key)
    backup_key, actor_key = jax.random.split(key)
    target = backup(state, batch, backup_key, config)
    critics, critic_opt_state, metrics = descend(
        lambda critics: regression(critics, batch, target),
        state.critics,
        state.critic_opt_state,
        config.optimizer(),
    )
    actor, actor_opt_state, actor_metrics = descend(
        lambda actor: actor_loss(actor, critics, batch, actor_key, config),
        state.actor,
        state.actor_opt_state,
        config.actor_optimizer(),
    )
    turn = (state.count >= config.average_start) & (state.count % config.average_every == 0)
    average = follow(state.average, actor, config.average_rate)
    return DiffusionQlState(
        critics=critics,
        target_critics=follow(state.target_critics, critics, config.polyak),
        actor=actor,
        average=jax.tree.map(lambda new, old: jnp.where(turn, new, old), average, state.average),
        critic_opt_state=critic_opt_state,
        actor_opt_state=actor_opt_state,
        count=state.count + 1,
        key=words,
    ), metrics | actor_metrics


phases = one_phase(update)


def models(state: DiffusionQlState) -> Models:
    """The policy itself, not its average, and the target critics, which rank its samples."""
    return Models(actor=state.actor, behavior=None, critics=state.target_critics, value=None)


METHOD = Method(
    "diffusionql",
    DiffusionQlConfig,
    init,
    phases,
    models,
    deploy={"n": 50, "lam": 1.0, "wp": 0.0, "anchor": "none", "temperature": 1.0},
    heavy=True,
)
