"""Train a behaviour policy for locomotion data by soft actor-critic, and keep snapshots.

    export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    python tools/train_behavior.py --env Hopper-v4 --steps 400000 --seed 1 --out hopper
    python tools/train_behavior.py --env Walker2d-v4 --steps 1300000 --seed 1 --out walker2d
    python tools/train_behavior.py --env HalfCheetah-v4 --steps 5000000 --seed 4 \
        --out halfcheetah --envs 16 --chunk 1024 --updates-per-step 0.125 --pessimism 0 --lr 1e-3 \
        --gamma 0.98 --tau 0.01 --buffer 500000 --entropy -0.4 --snapshot-every 20000

made the networks of gemrl/data/policies, whose levels.json has the steps at which each was taken;
the last two runs were stopped once an expert was there. HalfCheetah's options were found by
trial, one seed each and several changed at once: with target entropy -1 and 0.25 to 0.5 updates
a step it was at 6100 to 6400 after 500,000 steps, with those above at 7100, and rose faster.

The folder gets `snapshot-<steps>.npz` files, in the format that `gemrl.data.behavior` reads, and
one line of `levels.jsonl` for each: its steps so far and its measured returns. The early
snapshots stand in for a replay buffer, the later ones for medium and expert behaviour.

Soft actor-critic (Haarnoja et al. 2018) as usual, but for what makes it cheap on one CPU core:
simulation and learning alternate in chunks, so that a chunk of updates is one compiled scan; the
actor acts in NumPy, since its calls are far smaller than JAX's overhead; it is updated once for
every two critic updates. Critics have layer normalization, meant to let them learn fast without
diverging, and observations are normalized by statistics that go with the policy. Snapshots hold
a running average of the actor, to smooth its level a little; it still jumps about on Hopper.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import optax
import tyro

Policy = dict[str, np.ndarray]
Layers = list[tuple[jax.Array, jax.Array]]
State = dict[str, Any]

# Returns of a random and of an expert policy: D4RL's, so that scores compare with its datasets.
REFERENCE = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
}
EPISODE = 1000
LOGSTD = (-5.0, 2.0)
OBS_CLIP = 10.0


@dataclass(frozen=True)
class Options:
    """What to train, and how."""

    env: str  # Gymnasium's id, such as Hopper-v4
    out: Path  # folder for the snapshots
    steps: int = 1_000_000  # environment steps in all
    seed: int = 0
    envs: int = 8  # environments stepped in turn, so that one call of the actor serves them all
    chunk: int = 512  # environment steps between two rounds of updates
    updates_per_step: float = 0.5  # critic updates for each environment step
    random_steps: int = 5_000  # uniformly random actions at the start
    batch: int = 128
    actor_width: int = 96
    critic_width: int = 160
    lr: float = 4e-4  # Adam's rate; falls to a tenth over the second half of the training
    gamma: float = 0.99
    tau: float = 0.005  # how fast target critics follow
    average: float = 0.002  # how fast the snapshots' actor follows the learning one
    pessimism: float = 1.0  # 1 trusts the lower of two critics, 0 their mean
    entropy: float = -1.0  # target for each action dimension
    reward_scale: float = 0.1  # keeps values at a size that a fresh network can express soon
    buffer: int = 1_000_000  # transitions kept for replay
    snapshot_every: int = 10_000  # steps between snapshots; five times that after `dense_until`
    dense_until: int = 200_000
    episodes: int = 5  # to measure a snapshot by, sampled and deterministic each


def act(policy: Policy, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    """Actions for a batch of observations: sampled, or the mode where `rng` is None.

    This is the file format's forward pass; data are collected and levels measured with it.
    """
    x = (obs - policy["obs_mean"]) / policy["obs_std"]
    x = np.clip(x, -OBS_CLIP, OBS_CLIP).astype(np.float32)
    for i in "01":
        x = np.maximum(x @ policy[f"W{i}"] + policy[f"b{i}"], 0)
    mean = x @ policy["Wmu"] + policy["bmu"]
    if rng is not None:
        std = np.exp(np.clip(x @ policy["Wlogstd"] + policy["blogstd"], *LOGSTD))
        mean = mean + std * rng.standard_normal(mean.shape, np.float32)
    return np.tanh(mean)


def make_env(name: str) -> Any:
    """The bare simulator: wrappers would only cost time, and time limits are kept here."""
    return gymnasium.make(name, disable_env_checker=True).unwrapped


def returns(
    envs: list[Any], policy: Policy, rng: np.random.Generator | None, seed: int
) -> np.ndarray:
    """Undiscounted returns of an episode in each environment, which run side by side."""
    totals, alive = np.zeros(len(envs)), np.arange(len(envs))
    obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    for _ in range(EPISODE):
        actions = act(policy, obs[alive], rng)
        results = [envs[i].step(a) for i, a in zip(alive, actions, strict=True)]
        obs[alive] = [result[0] for result in results]
        totals[alive] += [result[1] for result in results]
        alive = alive[[not result[2] for result in results]]
        if not alive.size:
            break
    return totals


def measure(envs: list[Any], name: str, policy: Policy, seed: int) -> dict[str, Any]:
    """Mean return, and normalized score with its standard error, sampled and deterministic."""
    low, high = REFERENCE[name.split("-")[0]]
    levels: dict[str, Any] = {"episodes": len(envs)}
    for kind, rng in (("sampled", np.random.default_rng(seed)), ("deterministic", None)):
        totals = returns(envs, policy, rng, seed)
        scores = 100 * (totals - low) / (high - low)
        levels[f"{kind}_return"] = round(float(totals.mean()), 1)
        levels[f"{kind}_normalized"] = round(float(scores.mean()), 2)
        error = scores.std(ddof=1) / len(envs) ** 0.5
        levels[f"{kind}_normalized_stderr"] = round(float(error), 2)
    return levels


def write_policy(path: Path, policy: Policy) -> Policy:
    """Write a policy with half-precision weights; return it as a reader will see it."""
    kept = {
        name: value.astype(np.float32 if name.startswith("obs") else np.float16)
        for name, value in policy.items()
    }
    facts = {
        "activation": np.array("relu"),
        "squash_tanh": np.array(True),
        "obs_clip": np.array(OBS_CLIP, np.float32),
        "logstd_clip": np.array(LOGSTD, np.float32),
    }
    np.savez_compressed(path, **kept, **facts)
    return {name: value.astype(np.float32) for name, value in kept.items()}


class Statistics:
    """Running mean and standard deviation of observations."""

    def __init__(self, size: int) -> None:
        self.count, self.sum, self.squares = 0, np.zeros(size), np.zeros(size)

    def add(self, x: np.ndarray) -> None:
        # Double precision makes plain sums good enough: observations are at most tens.
        self.count, self.sum = self.count + len(x), self.sum + x.sum(0)
        self.squares = self.squares + (x * x).sum(0)

    def scale(self) -> Policy:
        count = max(self.count, 1)
        mean = self.sum / count
        std = np.sqrt(np.maximum(self.squares / count - mean**2, 0)) + 1e-3
        std = std if self.count else np.ones_like(mean)
        return {"obs_mean": mean.astype(np.float32), "obs_std": std.astype(np.float32)}


class Replay:
    """A ring of transitions (observation, action, reward, next observation, terminated)."""

    def __init__(self, capacity: int, obs_size: int, action_size: int) -> None:
        self.cuts = np.cumsum([obs_size, action_size, 1, obs_size])
        # One row holds a whole transition, so that a random read touches memory once.
        self.rows = np.zeros((capacity, self.cuts[-1] + 1), np.float32)
        self.size = self.next = 0

    def add(self, *parts: np.ndarray) -> None:
        rows = np.concatenate(parts, 1)
        at = (self.next + np.arange(len(rows))) % len(self.rows)
        self.rows[at] = rows
        self.next = (self.next + len(rows)) % len(self.rows)
        self.size = min(self.size + len(rows), len(self.rows))

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> list[np.ndarray]:
        parts = np.split(self.rows[rng.integers(self.size, size=shape)], self.cuts, axis=-1)
        return [*parts[:2], parts[2][..., 0], parts[3], parts[4][..., 0]]


class Simulation:
    """Environments side by side, whose transitions go into a replay buffer."""

    def __init__(self, options: Options, rng: np.random.Generator) -> None:
        self.rng = rng
        self.envs = [make_env(options.env) for _ in range(options.envs)]
        self.obs = np.stack(
            [env.reset(seed=options.seed + i)[0] for i, env in enumerate(self.envs)]
        )
        self.obs_size, self.action_size = self.obs.shape[1], self.envs[0].action_space.shape[0]
        # Episodes are out of phase, so that time limits do not all strike at once.
        self.age = np.linspace(0, EPISODE, len(self.envs), endpoint=False).astype(int)
        self.statistics = Statistics(self.obs_size)
        self.replay = Replay(options.buffer, self.obs_size, self.action_size)

    def step(self, policy: Policy | None) -> None:
        """Step every environment once, by uniformly random actions where there is no policy."""
        if policy is None:
            actions = self.rng.uniform(-1, 1, (len(self.envs), self.action_size))
        else:
            actions = act(policy, self.obs, self.rng)
        results = [env.step(a) for env, a in zip(self.envs, actions, strict=True)]
        after = np.stack([result[0] for result in results])
        rewards = np.array([result[1] for result in results])
        # Only a fall ends the future's value; running out of time does not.
        terminated = np.array([result[2] for result in results])
        self.replay.add(self.obs, actions, rewards[:, None], after, terminated[:, None])
        self.statistics.add(self.obs)
        self.obs, self.age = after, self.age + 1
        for i in np.flatnonzero(terminated | (self.age >= EPISODE)):
            self.obs[i], self.age[i] = self.envs[i].reset()[0], 0


def layers(key: jax.Array, sizes: list[int]) -> Layers:
    """Weights and biases of a multilayer perceptron."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.uniform(k, (n, m), minval=-(n**-0.5), maxval=n**-0.5), jnp.zeros(m))
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def value(critic: Layers, x: jax.Array) -> jax.Array:
    """A critic: layer normalization without gains, before each rectifier."""
    for weight, bias in critic[:-1]:
        x = x @ weight + bias
        x = x - x.mean(-1, keepdims=True)
        x = jax.nn.relu(x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5))
    weight, bias = critic[-1]
    return (x @ weight + bias)[..., 0]


def sample_action(actor: Layers, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A reparametrized action, and the logarithm of its density."""
    for weight, bias in actor[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    mean, logstd = jnp.split(x @ actor[-1][0] + actor[-1][1], 2, -1)
    logstd = jnp.clip(logstd, *LOGSTD)
    noise = jax.random.normal(key, mean.shape)
    raw = mean + jnp.exp(logstd) * noise
    gaussian = -0.5 * noise**2 - logstd - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(u)^2), in a form that does not underflow.
    jacobian = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), (gaussian - jacobian).sum(-1)


class Learner:
    """Soft actor-critic's updates, compiled as a scan over a chunk of batches."""

    def __init__(self, options: Options, obs_size: int, action_size: int) -> None:
        self.options, self.target_entropy = options, options.entropy * action_size
        updates = int(options.steps * options.updates_per_step)
        rate = optax.linear_schedule(options.lr, options.lr / 10, updates // 2, updates // 2)
        # The actor takes half as many steps, hence runs through its schedule in half the count.
        slow = optax.linear_schedule(options.lr, options.lr / 10, updates // 4, updates // 4)
        self.critic_adam, self.actor_adam = optax.adam(rate), optax.adam(slow)
        self.alpha_adam = optax.adam(options.lr)
        keys = jax.random.split(jax.random.key(options.seed), 4)
        wide, narrow = options.critic_width, options.actor_width
        critics = [layers(k, [obs_size + action_size, wide, wide, 1]) for k in keys[:2]]
        actor = layers(keys[2], [obs_size, narrow, narrow, 2 * action_size])
        log_alpha = jnp.log(jnp.array(0.1))
        self.state: State = {
            "critics": critics,
            "targets": jax.tree.map(jnp.copy, critics),
            "actor": actor,
            "average": jax.tree.map(jnp.copy, actor),
            "log_alpha": log_alpha,
            "critic_adam": self.critic_adam.init(critics),
            "actor_adam": self.actor_adam.init(actor),
            "alpha_adam": self.alpha_adam.init(log_alpha),
            "key": keys[3],
        }
        self.update = jax.jit(self.scan, donate_argnums=0)

    def policy(self, scale: Policy, actor: str = "actor") -> Policy:
        """The actor, or its running average, by the file format's names."""
        (w0, b0), (w1, b1), (weight, bias) = jax.tree.map(np.asarray, self.state[actor])
        policy = {"W0": w0, "b0": b0, "W1": w1, "b1": b1}
        policy["Wmu"], policy["Wlogstd"] = np.split(weight, 2, -1)
        policy["bmu"], policy["blogstd"] = np.split(bias, 2, -1)
        return policy | scale

    def judge(self, critics: list[Layers], obs: jax.Array, action: jax.Array) -> jax.Array:
        """Value by both critics: between their mean and the lower one."""
        # Two products rather than a batched one: XLA's batched products are slow on a CPU.
        x = jnp.concatenate([obs, action], -1)
        one, two = (value(critic, x) for critic in critics)
        return 0.5 * (one + two - self.options.pessimism * jnp.abs(one - two))

    def critic_step(self, state: State, batch: list[jax.Array], key: jax.Array) -> State:
        obs, action, reward, after, terminated = batch
        following, logp = sample_action(state["actor"], after, key)
        future = self.judge(state["targets"], after, following)
        future = future - jnp.exp(state["log_alpha"]) * logp
        discount = self.options.gamma * (1 - terminated)
        goal = self.options.reward_scale * reward + discount * future

        def loss(critics: list[Layers]) -> jax.Array:
            x = jnp.concatenate([obs, action], -1)
            one, two = (((value(critic, x) - goal) ** 2).mean() for critic in critics)
            return one + two

        slopes = jax.grad(loss)(state["critics"])
        steps, adam = self.critic_adam.update(slopes, state["critic_adam"])
        critics = optax.apply_updates(state["critics"], steps)
        targets = optax.incremental_update(critics, state["targets"], self.options.tau)
        return state | {"critics": critics, "targets": targets, "critic_adam": adam}

    def actor_step(self, state: State, obs: jax.Array, key: jax.Array) -> State:
        alpha = jnp.exp(state["log_alpha"])

        def loss(actor: Layers) -> tuple[jax.Array, jax.Array]:
            action, logp = sample_action(actor, obs, key)
            return (alpha * logp - self.judge(state["critics"], obs, action)).mean(), logp.mean()

        slope, logp = jax.grad(loss, has_aux=True)(state["actor"])
        steps, adam = self.actor_adam.update(slope, state["actor_adam"])
        # The temperature rises while the policy has less entropy than it should.
        slope = -(logp + self.target_entropy)
        change, alpha_adam = self.alpha_adam.update(slope, state["alpha_adam"])
        actor = optax.apply_updates(state["actor"], steps)
        return state | {
            "actor": actor,
            "average": optax.incremental_update(actor, state["average"], self.options.average),
            "log_alpha": state["log_alpha"] + change,
            "actor_adam": adam,
            "alpha_adam": alpha_adam,
        }

    def scan(
        self, state: State, batches: list[jax.Array], obs_mean: jax.Array, obs_std: jax.Array
    ) -> State:
        """Update by batches of shape [rounds, 2, batch, ...]; the actor once a round."""

        def scale(obs: jax.Array) -> jax.Array:
            return jnp.clip((obs - obs_mean) / obs_std, -OBS_CLIP, OBS_CLIP)

        def body(state: State, pair: list[jax.Array]) -> tuple[State, None]:
            obs, action, reward, after, terminated = pair
            pair = [scale(obs), action, reward, scale(after), terminated]
            key, *keys = jax.random.split(state["key"], 4)
            state = self.critic_step(state, [x[0] for x in pair], keys[0])
            state = self.critic_step(state, [x[1] for x in pair], keys[1])
            state = self.actor_step(state, pair[0][1], keys[2])
            return state | {"key": key}, None

        return jax.lax.scan(body, state, batches)[0]


def main(options: Options) -> None:
    """Train, and write snapshots with their levels."""
    options.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(options.seed)
    simulation = Simulation(options, rng)
    learner = Learner(options, simulation.obs_size, simulation.action_size)
    judges = [make_env(options.env) for _ in range(options.episodes)]
    facts = asdict(options) | {"out": str(options.out), "mujoco": mujoco.__version__}
    facts["gymnasium"] = gymnasium.__version__
    (options.out / "options.json").write_text(json.dumps(facts, indent=1) + "\n")

    started, steps, due, policy = time.time(), 0, 0, None
    rounds = max(1, int(options.chunk * options.updates_per_step / 2))
    while True:
        if steps >= due:
            due += options.snapshot_every * (1 if steps < options.dense_until else 5)
            name = f"snapshot-{steps:08d}.npz"
            kept = learner.policy(simulation.statistics.scale(), "average")
            kept = write_policy(options.out / name, kept)
            levels = measure(judges, options.env, kept, 10_000 + options.seed)
            line = {"file": name, "steps": steps, "seconds": round(time.time() - started)}
            line |= levels | {"alpha": round(float(jnp.exp(learner.state["log_alpha"])), 5)}
            with (options.out / "levels.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
        if steps >= options.steps:
            return
        for _ in range(options.chunk // options.envs):
            simulation.step(policy)
            steps += options.envs
        if steps >= options.random_steps:
            batches = simulation.replay.sample(rng, (rounds, 2, options.batch))
            scale = simulation.statistics.scale()
            learner.state = learner.update(learner.state, batches, **scale)
            policy = learner.policy(scale)


if __name__ == "__main__":
    main(tyro.cli(Options))
