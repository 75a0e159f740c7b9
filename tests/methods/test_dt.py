"""The Decision Transformer: its contexts in training and at run time, its network and its loss."""

import dataclasses

import equinox as eqx
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gemrl
from gemrl.data.shards import open_sharded
from gemrl.data.tasks import RewardTransform, task_named
from gemrl.decide.policy import Policy
from gemrl.envs.maze2d import Maze2D
from gemrl.errors import ConfigError, KnobError, ObservationError
from gemrl.evaluate.rollouts import rollout
from gemrl.learn.bundle import Bundle, config_to_json
from gemrl.learn.rows import returns_to_go
from gemrl.learn.spec import Spec, spec_of, unpack
from gemrl.learn.train import rows_of
from gemrl.methods import dt
from gemrl.methods.context import Steps, pack
from gemrl.methods.context import unpack as unpack_context
from gemrl.methods.networks import dropout
from gemrl.methods.protocol import Models

OBS, ACTIONS, LENGTH = 2, 2, 4
TINY = {"hidden": (16,), "heads": 2, "blocks": 1, "dropout": 0.0, "holdout": 0.0}
UMAZE = "maze2d-umaze-v1"


# Contexts in training


def hand_made(lengths=(3, 1, 5), first_reward=1.0):
    """Episodes whose observations name the episode and the step; rewards 1, 2, 3, ..."""
    rows = sum(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    obs = np.stack([100.0 * (1 + episode), step], axis=1)
    ends = np.append(np.diff(episode) > 0, True)
    return gemrl.from_arrays(
        obs,
        np.stack([0.1 * step, 0.1 * episode], axis=1),
        np.append(first_reward, np.arange(2.0, rows + 1)),
        ends,
        next_observations=obs,
    )


def contexts_of(data, scale=1.0):
    """All rows of a dataset with their contexts, and the scaler."""
    config = dt.DtConfig(context=LENGTH, return_scale=scale, target_return=1.0)
    rows = np.arange(len(data))
    spec = spec_of(data, rows, RewardTransform(scale=7.0, shift=-3.0))
    loader = rows_of(data, rows, spec, dt.METHOD, config)
    found = loader.gather(rows)
    assert found.dtype == np.float32
    assert found.shape == (len(data), loader.width)
    return found, spec


def steps_of(data, **settings):
    found, spec = contexts_of(data, **settings)
    batch = unpack(found, data.obs_dim, data.action_dim)
    assert batch.next_action is None
    return unpack_context(batch.context, data.obs_dim, data.action_dim), spec


def test_returns_to_go_are_sums_of_the_tasks_own_rewards_to_the_episodes_end():
    steps, _ = steps_of(hand_made(), scale=10.0)
    # Rewards 1 2 3 | 4 | 5 6 7 8 9, whatever training makes of them for critics.
    expected = [6, 5, 3, 4, 35, 30, 24, 17, 9]
    np.testing.assert_allclose(steps.to_go[:, -1], np.array(expected) / 10, rtol=1e-6)


def test_a_terminal_ends_returns_to_go_where_the_episode_goes_on():
    """As in AntMaze's files, which hold many steps at the goal, each of them paid and terminal."""
    rewards = np.array([0.0, 0, 1, 1, 0, 1, 0, 0, 0, 1])
    rows = np.arange(10.0)
    timeouts = np.isin(np.arange(10), [7, 9])
    columns = (rows[:, None], rows[:, None] / 10, rewards, rewards > 0)
    data = gemrl.from_arrays(*columns, timeouts, rows[:, None], terminals_end=False)
    assert len(data.episode_starts) == 2
    np.testing.assert_array_equal(returns_to_go(data), [1, 1, 1, 1, 1, 1, 0, 0, 1, 1])


def test_a_huge_reward_does_not_change_the_returns_to_go_of_other_episodes():
    found = returns_to_go(hand_made(first_reward=1e20))
    np.testing.assert_array_equal(found[3:], [4, 35, 30, 24, 17, 9])


def test_a_context_holds_the_steps_up_to_its_row_and_never_crosses_the_episodes_start():
    data = hand_made()
    steps, spec = steps_of(data)
    obs = steps.obs * spec.obs_std + spec.obs_mean
    for row in range(len(data)):
        name, step = data.observations[row]
        held = int(min(step + 1, LENGTH))
        np.testing.assert_array_equal(steps.present[row], np.arange(LENGTH) >= LENGTH - held)
        wanted = np.arange(step + 1 - held, step + 1)
        np.testing.assert_array_equal(steps.number[row, -held:], wanted)
        np.testing.assert_allclose(obs[row, -held:, 0], name, rtol=1e-5)
        np.testing.assert_allclose(obs[row, -held:, 1], wanted, atol=1e-4)
        np.testing.assert_allclose(steps.action[row, -held:, 0], 0.1 * wanted, atol=1e-6)
        before = pack(steps).reshape(len(data), LENGTH, -1)[row, :-held]
        assert not before.any()


def test_the_plain_row_is_as_without_a_context():
    data = hand_made()
    found, spec = contexts_of(data)
    plain = rows_of(data, np.arange(len(data)), spec, dt.METHOD._replace(context=None), None)
    np.testing.assert_array_equal(found[:, : plain.width], plain.gather(np.arange(len(data))))


def test_contexts_from_disk_are_those_from_memory(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for name, width in (("observations", 3), ("next_observations", 3), ("actions", 2)):
            file[name] = rng.uniform(-1, 1, (300, width)).astype(np.float32)
        file["rewards"] = rng.normal(size=300).astype(np.float32)
        file["terminals"] = rng.random(300) < 0.05
        file["timeouts"] = np.arange(1, 301) % 20 == 0
    memory, disk = gemrl.load_dataset(path), open_sharded(path, memory=10**6, shard=1500)
    training, held = memory.split_episodes(0.2, 0)
    assert len(held) > 0
    spec = spec_of(memory, training, RewardTransform())
    asked = rng.integers(len(training), size=500)
    config = dt.DtConfig(target_return=1.0)
    in_memory, on_disk = (
        rows_of(data, training, spec, dt.METHOD, config) for data in (memory, disk)
    )
    assert in_memory.width == on_disk.width
    np.testing.assert_array_equal(in_memory.gather(asked), on_disk.gather(asked))


def test_data_without_a_target_return_are_refused_with_a_hint():
    data = hand_made()
    spec = spec_of(data, np.arange(len(data)), RewardTransform())
    with pytest.raises(ConfigError, match=r"target_return is not set.* return up to 35"):
        rows_of(data, np.arange(len(data)), spec, dt.METHOD, dt.DtConfig())


# The network


def fresh(config, obs_dim, action_dim):
    """A network with weights of NumPy's, for which nothing is compiled."""
    rng = np.random.default_rng(0)
    shapes = eqx.filter_eval_shape(
        lambda key: dt.init(config, obs_dim, action_dim, key).model, jax.random.key(0)
    )
    return jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def model():
    return fresh(dt.DtConfig(max_steps=6, **(TINY | {"blocks": 2})), OBS, ACTIONS)


@eqx.filter_jit
def actions_at(model, packed):
    return model.actions(model.unpacked(packed))


def random_steps(rng, count, length=LENGTH):
    return Steps(
        rng.normal(size=(count, length)),
        rng.normal(size=(count, length, OBS)),
        rng.uniform(-1, 1, (count, length, ACTIONS)),
        np.tile(np.arange(length), (count, 1)),
        np.ones((count, length)),
    )


def test_a_later_token_never_changes_an_earlier_action(model):
    rng = np.random.default_rng(1)
    steps = random_steps(rng, LENGTH)
    other = random_steps(rng, LENGTH)
    # Row i has other tokens from the action of step i on.
    later = np.arange(LENGTH) > np.arange(LENGTH)[:, None]
    mixed = Steps(
        np.where(later, other.to_go, steps.to_go),
        np.where(later[..., None], other.obs, steps.obs),
        np.where((later | np.eye(LENGTH, dtype=bool))[..., None], other.action, steps.action),
        steps.number,
        steps.present,
    )
    one, two = (np.asarray(actions_at(model, pack(each))) for each in (steps, mixed))
    for row in range(LENGTH):
        np.testing.assert_allclose(two[row, : row + 1], one[row, : row + 1], atol=1e-6)
        assert (np.abs(two[row, row + 1 :] - one[row, row + 1 :]) > 1e-3).all()


def test_what_stands_before_the_episodes_start_does_not_matter(model):
    rng = np.random.default_rng(2)
    steps = random_steps(rng, LENGTH)
    steps.present[:, :2] = 0
    other = random_steps(rng, LENGTH)
    filled = Steps(
        *(np.concatenate([100 * b[:, :2], a[:, 2:]], 1) for a, b in zip(steps, other, strict=True))
    )._replace(present=steps.present)
    one, two = (np.asarray(actions_at(model, pack(each))) for each in (steps, filled))
    np.testing.assert_allclose(two[:, 2:], one[:, 2:], atol=1e-6)
    alone = np.asarray(actions_at(model, pack(Steps(*(values[:, 2:] for values in steps)))))
    np.testing.assert_allclose(alone, one[:, 2:], atol=1e-6)


def by_hand(model, steps):
    """Actions of one context in NumPy and double precision, a token and a head at a time."""
    net = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)

    def linear(layer, x):
        return x @ layer.weight + layer.bias

    def norm(layer, x):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * layer.scale + layer.shift

    tokens, there = [], []
    for k in range(len(steps.to_go)):
        when = net.from_number[min(int(steps.number[k]), len(net.from_number) - 1)]
        for layer, value in (
            (net.from_return, steps.to_go[k : k + 1]),
            (net.from_state, steps.obs[k]),
            (net.from_action, steps.action[k]),
        ):
            tokens.append(norm(net.body.first_norm, linear(layer, value) + when))
            there.append(steps.present[k] > 0)
    for block in net.body.blocks:
        size = len(tokens[0]) // block.heads
        normed = [linear(block.project, norm(block.attention_norm, x)) for x in tokens]
        q, k, v = (np.stack(part) for part in zip(*(np.split(x, 3) for x in normed), strict=True))
        after = []
        for place, token in enumerate(tokens):
            seen = [i for i in range(place + 1) if there[i]] or [place]
            heads = []
            for head in range(block.heads):
                part = slice(head * size, (head + 1) * size)
                score = np.exp(k[seen][:, part] @ q[place, part] / np.sqrt(size))
                heads.append(score / score.sum() @ v[seen][:, part])
            token = token + linear(block.merge, np.concatenate(heads))
            inside = norm(block.layers_norm, token)
            first, last = block.layers.layers
            after.append(token + linear(last, np.maximum(linear(first, inside), 0)))
        tokens = after
    states = [norm(net.body.last_norm, x) for x in tokens[1::3]]
    return np.tanh(np.stack([linear(net.head, x) for x in states]))


def test_the_loss_is_the_mean_squared_error_over_steps_that_are_there(model):
    steps = random_steps(np.random.default_rng(3), 3)
    steps.present[0, :3] = 0
    steps.present[1, :1] = 0
    steps = steps._replace(number=steps.number + 4)  # Beyond the last embedding, which is shared.
    errors = []
    for row in range(3):
        one = Steps(*(values[row] for values in steps))
        error = ((by_hand(model, one) - one.action) ** 2).mean(axis=1)
        errors += list(error[one.present > 0])
    assert len(errors) == 1 + 3 + 4
    nothing = jnp.zeros((3, 1))
    batch = dt.Batch(nothing, nothing, nothing, nothing, nothing, context=jnp.asarray(pack(steps)))
    loss, metrics = jax.jit(dt.action_loss)(model, batch, None)
    assert float(loss) == pytest.approx(np.mean(errors), rel=1e-5)
    assert float(metrics["actor/loss"]) == float(loss)


def test_dropout_leaves_the_mean_as_it_was_and_nothing_out_at_run_time():
    ones = np.ones(10_000, np.float32)
    found = np.asarray(dropout(ones, 0.2, jax.random.key(1)))
    assert set(np.unique(found)) == {0.0, np.float32(1.25)}
    assert found.mean() == pytest.approx(1, abs=0.02)
    assert dropout(ones, 0.2, None) is ones


def test_the_first_updates_are_clipped_decayed_and_slow():
    config = dt.DtConfig(learning_rate=0.1, warmup_steps=4, weight_decay=0.5, clip=0.25)
    optimizer = config.optimizer()
    weight, gradient = np.array([2.0, -1.0]), np.array([3.0, 4.0])
    state = optimizer.init(jnp.asarray(weight))
    clipped = gradient * 0.25 / 5
    for number in range(6):
        rate = 0.1 * min((number + 1) / 4, 1)
        updates, state = optimizer.update(jnp.asarray(gradient), state, jnp.asarray(weight))
        # The moments of a gradient that stays are itself and its square.
        expected = -rate * (clipped / (np.abs(clipped) + 1e-8) + 0.5 * weight)
        np.testing.assert_allclose(np.asarray(updates), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("task", "scale", "target"),
    [
        ("hopper-medium-v2", 1000, 3600),
        ("walker2d-medium-replay-v2", 1000, 5000),
        ("halfcheetah-medium-v2", 1000, 6000),
        ("halfcheetah-medium-expert-v2", 1000, 12000),
        ("halfcheetah-expert-v2", 1000, 12000),
        ("maze2d-large-v1", 1, 280),
        ("antmaze-umaze-v2", 1, 1),
    ],
)
def test_published_settings_are_taken_for_their_tasks(task, scale, target):
    config = dt.DtConfig.for_task(task)
    assert (config.return_scale, config.target_return) == (scale, target)


@pytest.mark.parametrize(
    "bad",
    [
        {"hidden": (8, 8)},
        {"heads": 3},
        {"context": 0},
        {"target_return": "high"},
        {"target_return": 1e300},
        {"return_scale": 1e-50},
        {"return_scale": 1e300},
    ],
)
def test_settings_that_make_no_network_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        dt.DtConfig(**bad)


# Decisions


def policy_of(model, config, spec, kind=Policy):
    manifest = {
        "method": "dt",
        "config": config_to_json(config),
        "task": None,
        "dataset": {"origin": "unknown", "fingerprint": "none"},
        "updates": {"main": 0},
        "digest": "a policy of this test",
    }
    models = Models(actor=model, behavior=None, critics=(), value=None)
    return kind(Bundle(models, spec, manifest))


@pytest.fixture(scope="module")
def policy():
    """Trained where the return tells actions apart: a step earns what the first action is."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2000, OBS))
    actions = rng.choice([-0.8, 0.0, 0.8], (2000, 1)) * np.array([[1.0, -1.0]])
    data = gemrl.from_arrays(obs, actions, actions[:, 0], np.arange(2000) % 2 == 1, None, obs)
    config = dt.DtConfig(
        learning_rate=3e-3, warmup_steps=10, context=2, max_steps=2, target_return=1.6, **TINY
    )
    rows = np.arange(2000)
    spec = spec_of(data, rows, RewardTransform())
    packed = rows_of(data, rows, spec, dt.METHOD, config).gather(rng.permutation(rows))

    @jax.jit
    def trained(model, minibatches):
        words = jnp.zeros(2, jnp.uint32)
        state = dt.DtState(model, config.optimizer().init(model), words)

        def body(number, state):
            batch = unpack(minibatches[number % len(minibatches)], OBS, ACTIONS)
            return dt.update(state, batch, config)[0]

        return jax.lax.fori_loop(0, 400, body, state).model

    model = trained(fresh(config, OBS, ACTIONS), packed.reshape(40, 50, -1))
    return policy_of(jax.tree.map(np.asarray, model), config, spec)


STATE = np.zeros(OBS, np.float32)


def test_the_target_return_changes_what_is_done(policy):
    histories = [gemrl.History(policy, target_return=target) for target in (1.6, -1.6)]
    high, low = (policy.decide(STATE, history=history).action for history in histories)
    np.testing.assert_allclose(high, [0.8, -0.8], atol=0.25)
    np.testing.assert_allclose(low, [-0.8, 0.8], atol=0.25)
    np.testing.assert_array_equal(policy.decide(STATE).action, high)


def test_the_return_to_go_falls_by_rewards_and_stays_without(policy):
    history = gemrl.History(policy, target_return=0.8)
    history.add(STATE, [0.8, -0.8], 0.8)
    assert history.to_go == pytest.approx(0.0)
    np.testing.assert_allclose(policy.decide(STATE, history=history).action, 0, atol=0.25)
    history = gemrl.History(policy, target_return=0.8)
    history.add(STATE, [0.0, 0.0])
    assert history.to_go == pytest.approx(0.8)
    action = policy.decide(STATE, history=history).action
    np.testing.assert_allclose(action, [0.8, -0.8], atol=0.25)


def test_episodes_that_step_together_decide_as_each_alone(policy):
    rng = np.random.default_rng(4)
    targets = np.array([1.6, -1.6])
    together = gemrl.History(policy, 2, targets)
    alone = [gemrl.History(policy, target_return=target) for target in targets]
    for _ in range(3):
        obs, reward = rng.normal(size=(2, OBS)), rng.normal(size=2)
        record = policy.decide(obs, history=together)
        turned = policy.decide(obs[[1, 0]], history=together.rows(np.array([1, 0])))
        np.testing.assert_array_equal(turned.action, record.action[[1, 0]])
        for row, history in enumerate(alone):
            decision = policy.decide(obs[row], history=history)
            np.testing.assert_array_equal(decision.action, record.action[row])
            history.add(obs[row], record.action[row], reward[row])
        together.add(obs, record.action, reward)


def test_a_decision_with_a_history_is_replayed_bit_for_bit(policy):
    history = gemrl.History(policy)
    history.add(STATE + 1, [0.8, -0.8], 0.5)
    record = policy.decide(STATE, history=history)
    again = policy.replay(STATE, record.to_json(), history=history)
    np.testing.assert_array_equal(again.action, record.action)
    with pytest.raises(KnobError, match="another observation"):
        policy.replay(STATE, record)


def test_what_does_not_fit_a_history_is_refused(policy):
    history = gemrl.History(policy)
    with pytest.raises(ObservationError, match="history is of one episode"):
        policy.decide(STATE[None], history=history)
    with pytest.raises(ObservationError, match="the action has shape"):
        history.add(STATE, [[0.0, 0.0]], 1.0)
    with pytest.raises(KnobError, match="reward = nan"):
        history.add(STATE, [0.0, 0.0], np.nan)
    with pytest.raises(KnobError, match="target_return = 'high'"):
        gemrl.History(policy, target_return="high")
    for bad in (10**400, 10**5000, True, b"5", [1.0, [2.0]]):
        with pytest.raises(KnobError, match="target_return"):
            gemrl.History(policy, target_return=bad)
        with pytest.raises(KnobError, match="reward"):
            history.add(STATE, [0.0, 0.0], bad)
    with pytest.raises(KnobError, match="of this very policy"):
        policy.decide(STATE, history=[STATE])


def test_what_a_history_hands_out_cannot_be_written_to_and_does_not_change(policy):
    history = gemrl.History(policy, target_return=0.8)
    other, steps = history.copy(), history.steps
    for handed_out in (other.to_go, steps):
        with pytest.raises(ValueError, match="read-only"):
            handed_out[0] = 7
    history.add(STATE, [0.0, 0.0], 0.5)
    assert (steps[0], other.steps[0], history.steps[0]) == (0, 0, 1)
    assert other.to_go == pytest.approx(0.8)
    assert history.to_go == pytest.approx(0.3)


@pytest.mark.parametrize("size", [1e25, -1e30])
def test_a_state_or_return_so_large_that_norms_overflow_is_refused(policy, size):
    with pytest.raises(ObservationError, match="not finite"):
        policy.decide(STATE + np.float32(size))
    with pytest.raises(ObservationError, match="not finite"):
        policy.decide(STATE, history=gemrl.History(policy, target_return=size))


def test_the_return_to_go_may_be_set_on_the_way_to_numbers_only(policy):
    history = gemrl.History(policy, target_return=0.8)
    history.to_go = -1.6
    low = policy.decide(STATE, history=gemrl.History(policy, target_return=-1.6)).action
    np.testing.assert_array_equal(policy.decide(STATE, history=history).action, low)
    for bad in ([1.0, 2.0], float("nan"), "high"):
        with pytest.raises(KnobError, match="to_go"):
            history.to_go = bad
    with pytest.raises(ObservationError, match="the action"):
        history.add(STATE, [[1.0], [1.0, 2.0]])
    with pytest.raises(KnobError, match="history"):
        gemrl.History("x")


def test_what_looks_at_states_one_by_one_is_refused(policy):
    for refused in (
        lambda: policy.audited_by(policy),
        lambda: policy.with_density(policy),
        lambda: gemrl.Gates.calibrate(policy, hand_made()),
    ):
        with pytest.raises(KnobError, match="decides from an episode's history"):
            refused()


def test_a_policy_that_does_not_look_back_refuses_a_history(policy):
    manifest = policy.bundle.manifest | {"method": "bc"}
    plain = Policy(dataclasses.replace(policy.bundle, manifest=manifest))
    with pytest.raises(KnobError, match="'bc' looks at the present state alone"):
        gemrl.History(plain)
    with pytest.raises(KnobError, match="'bc' looks at the present state alone"):
        plain.decide(STATE, history=gemrl.History(policy))


class Watched(Policy):
    """Keeps what its networks were given and what it did."""

    def decide(self, obs, knobs=None, *, history=None, **more):
        decision = super().decide(obs, knobs, history=history, **more)
        self.seen = [*getattr(self, "seen", []), history.contexts(obs)]
        self.done = [*getattr(self, "done", []), decision.action]
        return decision


def test_histories_in_rollouts_are_the_contexts_of_the_resulting_episodes():
    task = task_named(UMAZE)
    config = dt.DtConfig(context=3, target_return=100.0, return_scale=10.0, **TINY)
    size, ones = np.ones(4, np.float32), np.ones(2, np.float32)
    spec = Spec(0.3 * size, 1.5 * size, -ones, ones, 1.0, 0.0)
    policy = policy_of(fresh(config, 4, 2), config, spec, Watched)
    starts = Maze2D(task, 100).reset(np.arange(100))[:, :2]
    near = int(np.argmin(np.linalg.norm(starts - np.array(task.grid.goal), axis=1)))
    rows, paths = rollout(policy, policy.default_knobs, task, [0, near], "validation")
    assert rows[1].episode_return > 0

    goal = np.linalg.norm(paths[1:, :, :2] - np.array(task.grid.goal), axis=-1) <= 0.5
    ends = np.arange(task.horizon) == task.horizon - 1
    for episode, row in enumerate(rows):
        data = gemrl.from_arrays(
            paths[:-1, episode],
            np.stack(policy.done)[:, episode],
            goal[:, episode].astype(float),
            ends,
            None,
            paths[1:, episode],
        )
        loader = rows_of(data, np.arange(len(data)), policy.spec, dt.METHOD, config)
        wanted = unpack_context(unpack(loader.gather(np.arange(len(data))), 4, 2).context, 4, 2)
        scaler = policy.input_spec
        given = np.stack(policy.seen)[:, episode]
        found = unpack_context((given - scaler.obs_mean) / scaler.obs_std, 4, 2)
        np.testing.assert_array_equal(found.present, wanted.present)
        np.testing.assert_array_equal(found.number, wanted.number)
        np.testing.assert_allclose(found.obs, wanted.obs, atol=1e-5)
        # The present action is not known yet.
        np.testing.assert_allclose(found.action[:, :-1], wanted.action[:, :-1], atol=1e-5)
        there = wanted.present > 0
        fallen = (100.0 - row.episode_return) / 10
        np.testing.assert_allclose((found.to_go - fallen)[there], wanted.to_go[there], atol=1e-5)
        assert not found.to_go[~there].any()


def test_rollouts_may_ask_for_another_return_of_a_policy_that_looks_back_alone():
    task = task_named(UMAZE)
    config = dt.DtConfig(context=3, target_return=100.0, return_scale=10.0, **TINY)
    size, ones = np.ones(4, np.float32), np.ones(2, np.float32)
    spec = Spec(0 * size, size, -ones, ones, 1.0, 0.0)
    policy = policy_of(fresh(config, 4, 2), config, spec, Watched)
    rollout(policy, policy.default_knobs, task, [0], "validation", target_return=50.0)
    scaler = policy.input_spec
    first = unpack_context((policy.seen[0] - scaler.obs_mean) / scaler.obs_std, 4, 2)
    np.testing.assert_allclose(first.to_go[:, -1], 50.0 / 10.0, atol=1e-6)
    plain = Policy(
        dataclasses.replace(policy.bundle, manifest=policy.bundle.manifest | {"method": "bc"})
    )
    with pytest.raises(KnobError, match="looks at the present state alone"):
        rollout(plain, gemrl.Knobs(n=0, wp=0.0), task, [0], "validation", target_return=50.0)
