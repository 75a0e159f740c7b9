"""The queue: requests share calls, too many are turned away, and nothing stale is answered."""

import asyncio
import dataclasses
import signal
import threading
import time

import numpy as np
import pytest

import gemrl
from gemrl.deploy.serve.bell import Bell
from gemrl.deploy.serve.costs import Costs
from gemrl.deploy.serve.decider import Decider
from gemrl.deploy.serve.engine import Engine
from gemrl.deploy.serve.requests import Ask
from gemrl.errors import OverloadError

KNOBS = gemrl.Knobs(n=16)


def request(obs, seed=0, deadline_ms=None, knobs=KNOBS):
    return Ask(
        rows=np.atleast_2d(np.asarray(obs, np.float32)),
        single=np.ndim(obs) == 1,
        knobs=knobs,
        seed=seed,
        t=None,
        episode=None,
        counted=False,
        deadline_ms=deadline_ms,
        detail=False,
        source="http",
        arrived=time.perf_counter(),
        history=None,
        obs=obs,
    )


def submitted(engine, ask):
    """A future with the outcome of a request."""
    future = asyncio.get_running_loop().create_future()

    def decided(outcome):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    engine.submit(ask, decided)
    return future


def serve(decider, asks, begin=True, **options):
    """Outcomes or errors of requests that all wait before the thread begins."""
    settings = {"queue": 64, "batch": 64, "wait_ms": 60_000, "overload": "shed"} | options
    heard = []

    async def run():
        engine = Engine(decider, **settings, done=heard.append)
        answers = []
        for one in asks:
            try:
                answers.append(submitted(engine, one))
            except OverloadError as error:
                answers.append(error)
        if begin:
            engine.start()
        waiting = [one for one in answers if isinstance(one, asyncio.Future)]
        found = iter(await asyncio.gather(*waiting, return_exceptions=True))
        await asyncio.to_thread(engine.stop)
        return engine, [one if isinstance(one, Exception) else next(found) for one in answers]

    engine, outcomes = asyncio.run(run())
    return engine, outcomes, heard


@pytest.fixture(scope="module")
def decider(fast_policy):
    decider = Decider(fast_policy)
    decider.warm_up([KNOBS], 4, 64)
    return decider


def test_what_waits_together_is_decided_together_and_as_if_alone(
    decider, fast_policy, observations
):
    asks = [request(obs, seed) for seed, obs in enumerate(observations)]
    asks.append(request(observations[:3], seed=9))
    engine, outcomes, heard = serve(decider, asks)
    assert engine.batches < len(asks) / 4
    assert {id(one) for one in heard} == {id(one) for one in outcomes}
    for seed, obs in enumerate(observations):
        alone = fast_policy.decide(obs, KNOBS, seed=seed)
        [decision] = outcomes[seed].decisions
        for name in ("action", "score", "q", "support_z", "executed_log_support"):
            np.testing.assert_array_equal(getattr(decision, name), getattr(alone, name))
    batch = fast_policy.decide(observations[:3], KNOBS, seed=9)
    found = np.stack([decision.action for decision in outcomes[-1].decisions])
    np.testing.assert_array_equal(found, batch.action)


def test_beyond_the_queue_requests_are_turned_away(decider, observations):
    asks = [request(obs) for obs in observations[:10]]
    engine, outcomes, _ = serve(decider, asks, queue=4)
    assert [isinstance(one, OverloadError) for one in outcomes] == [False] * 4 + [True] * 6
    assert engine.shed["queue"] == 6
    assert engine.waiting == 0


def test_beyond_the_queue_the_anchor_is_answered_where_that_is_configured(
    decider, fast_policy, observations
):
    asks = [request(obs, seed=1) for obs in observations[:30]]
    engine, outcomes, _ = serve(decider, asks, queue=4, overload="anchor")
    for outcome in outcomes[:4]:
        assert outcome.fallback is None
        assert int(outcome.decisions[0].n_scored) == 17
    for obs, outcome in zip(observations[4:16], outcomes[4:16], strict=True):
        assert outcome.fallback == "overload"
        anchor = fast_policy.decide(obs, dataclasses.replace(KNOBS, n=0)).action
        np.testing.assert_array_equal(outcome.decisions[0].action, anchor)
    assert all(isinstance(outcome, OverloadError) for outcome in outcomes[16:])
    assert engine.shed["queue"] == 14


@pytest.mark.parametrize("overload", ["shed", "anchor"])
def test_a_request_larger_than_the_queue_is_taken_where_nothing_waits(
    decider, observations, overload
):
    _, [outcome], _ = serve(decider, [request(observations[:8])], queue=4, overload=overload)
    assert [int(decision.n_scored) for decision in outcome.decisions] == [17] * 8
    assert outcome.fallback is None


def test_a_deadline_that_has_passed_while_waiting_is_never_answered_with_an_action(
    decider, observations
):
    asks = [request(observations[0], deadline_ms=1e-3), request(observations[1])]
    engine, outcomes, heard = serve(decider, asks)
    assert isinstance(outcomes[0], OverloadError)
    assert engine.shed["deadline"] == 1
    assert [one.ask for one in heard] == [asks[1]]


def test_costs_that_were_too_high_once_do_not_turn_everything_away_for_ever(decider, observations):
    async def run():
        engine = Engine(
            decider, queue=8, batch=8, wait_ms=1000, overload="shed", done=lambda _: None
        )
        engine.costs.factor = 20_000.0
        engine.start()
        answered = 0
        for number in range(400):
            try:
                await submitted(engine, request(observations[number % 40], deadline_ms=200))
                answered += 1
            except OverloadError:
                await asyncio.sleep(0.01)
            if answered >= 5:
                break
        await asyncio.to_thread(engine.stop)
        return answered, engine.shed["deadline"]

    answered, shed = asyncio.run(run())
    assert answered == 5
    assert shed > 0


class SlowDecider(Decider):
    """Takes its time, as a machine that is busy elsewhere does."""

    def decide(self, jobs, deadlines):
        found = super().decide(jobs, deadlines)
        time.sleep(0.3)
        return found


def test_what_was_decided_too_late_is_not_answered(fast_policy, observations):
    slow = SlowDecider(fast_policy)
    engine, [outcome], heard = serve(slow, [request(observations[0], deadline_ms=250)])
    assert isinstance(outcome, OverloadError)
    assert engine.shed["late"] == 1
    assert heard == []


def test_a_request_without_deadline_does_not_wait_for_ever(fast_policy, observations):
    slow = SlowDecider(fast_policy)
    asks = [request(obs) for obs in observations[:4]]
    _, outcomes, _ = serve(slow, asks, batch=1, wait_ms=500)
    assert isinstance(outcomes[-1], OverloadError)
    assert not isinstance(outcomes[0], Exception)


class BrokenDecider(Decider):
    """Has a defect that shows at some requests."""

    def decide(self, jobs, deadlines):
        if any(job.ask.seed == 13 for job in jobs):
            raise ZeroDivisionError("a defect")
        return super().decide(jobs, deadlines)


def test_a_defect_does_not_end_the_thread(fast_policy, observations, capfd):
    asks = [request(obs, seed) for seed, obs in enumerate(observations[:20])]
    _, outcomes, _ = serve(BrokenDecider(fast_policy), asks, batch=1)
    assert isinstance(outcomes[13], ZeroDivisionError)
    assert sum(isinstance(one, Exception) for one in outcomes) == 1
    assert "a defect" in capfd.readouterr().err


class SlowChunks:
    """The policy's backend, which takes 5 ms more for each chunk."""

    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def score(self, *args):
        time.sleep(0.005)
        return self.backend.score(*args)


def test_a_request_with_a_nearer_deadline_ends_a_long_search(run_folder, observations):
    many = gemrl.Knobs(n=2**16)
    policy = gemrl.load(run_folder, backend="fast")
    backend = policy.backend
    vars(policy)["backend"] = SlowChunks(backend)

    async def run():
        engine = Engine(
            Decider(policy), queue=8, batch=8, wait_ms=60_000, overload="shed", done=lambda _: None
        )
        engine.costs.candidate = 0.005 / 128
        engine.start()
        long = submitted(engine, request(observations[0], deadline_ms=60_000, knobs=many))
        await asyncio.sleep(0.1)
        short = submitted(engine, request(observations[1], deadline_ms=1_000))
        answers = await asyncio.gather(long, short)
        await asyncio.to_thread(engine.stop)
        return answers

    long, short = asyncio.run(run())
    scored = int(long.decisions[0].n_scored)
    assert 128 <= scored < 2**16
    vars(policy)["backend"] = backend
    again = policy.decide_again(observations[0], many, block=128, n_scored=scored)
    np.testing.assert_array_equal(again.action, long.decisions[0].action)
    assert int(short.decisions[0].n_scored) == 17


def test_stopping_turns_away_what_waits(decider, observations):
    async def run():
        engine = Engine(
            decider, queue=8, batch=8, wait_ms=1000, overload="shed", done=lambda _: None
        )
        answer = submitted(engine, request(observations[0]))
        engine._stopping = True
        engine.start()
        with pytest.raises(OverloadError, match="stopping"):
            await answer
        with pytest.raises(OverloadError, match="stopping"):
            submitted(engine, request(observations[0]))
        await asyncio.to_thread(engine.stop)

    asyncio.run(run())


def test_costs_follow_a_machine_that_slows_down_and_recovers():
    costs = Costs()
    quick = costs.seconds(1, 100)
    assert quick == pytest.approx(costs.call + costs.row + 100 * costs.candidate)
    for _ in range(30):
        costs.learn(costs.seconds(1, 100), 5 * quick)
    assert costs.seconds(1, 100) == pytest.approx(5 * quick, rel=0.05)
    costs.learn(costs.seconds(1, 100), 5000 * quick)
    assert costs.seconds(1, 100) < 9 * quick
    for _ in range(400):
        costs.learn(costs.seconds(1, 100), quick)
    assert costs.seconds(1, 100) == pytest.approx(quick, rel=0.05)


def test_an_answer_that_cannot_be_told_keeps_no_other_from_its_own(decider, observations, capsys):
    async def run():
        engine = Engine(
            decider, queue=64, batch=64, wait_ms=60_000, overload="shed", done=lambda _: None
        )

        def broken(outcome):
            raise RuntimeError("nobody is there")

        engine.submit(request(observations[0]), broken)
        other = submitted(engine, request(observations[1]))
        engine.start()
        found = await asyncio.wait_for(other, 60)
        await asyncio.to_thread(engine.stop)
        await asyncio.to_thread(engine.stop)  # A second time does nothing.
        await asyncio.sleep(0)
        return found

    assert len(asyncio.run(run()).decisions) == 1
    assert "nobody is there" in capsys.readouterr().err


def test_a_signal_in_a_thread_that_waits_for_its_bell_does_not_wake_it():
    bell, woken = Bell(), threading.Event()

    def wait():
        bell.wait()
        woken.set()

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        for _ in range(5):
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
            time.sleep(0.02)
        assert thread.is_alive()
        assert not woken.is_set()
        bell.ring()
        thread.join(10)
        assert woken.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
        bell.close()
