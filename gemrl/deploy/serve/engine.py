"""Requests that wait, decided in batches by a thread of its own, so that the server never blocks.

What waits when the thread is free is decided together, the nearest deadline first. A request that
cannot be answered in time is turned away at once, or answered with the anchor, as configured. One
that was decided too late is turned away too: a stale action is worse than none.
"""

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from gemrl.decide.search import CHUNK, Deadlines
from gemrl.deploy.serve.bell import Bell
from gemrl.deploy.serve.costs import Costs
from gemrl.deploy.serve.decider import Decider, Job, Outcome
from gemrl.deploy.serve.lent import Lent
from gemrl.deploy.serve.requests import Ask
from gemrl.deploy.serve.waiting import REPLY_SECONDS, Waiting, reply_seconds, turn
from gemrl.errors import OverloadError

# How often the event loop's lag is looked at, and how much of it is kept from look to look.
BEAT_SECONDS = 0.005
LAG_KEPT = 0.9
# A batch that nobody may interrupt takes no longer than this, where it has several requests.
SLICE_SECONDS = 0.01
# Where nothing was decided for so long, a request is tried that should be late.
TRY_SECONDS = 0.05
# The event loop may be late, but not so late.
STOP_SECONDS = 5.0
# With overload="anchor" this many times the queue may wait, since anchors are soon decided.
ANCHORS_WAITING = 4


Answers = Sequence[tuple[Waiting, Outcome | Exception]]


class Engine:
    """The queue and the thread that decides."""

    def __init__(
        self,
        decider: Decider,
        *,
        queue: int,
        batch: int,
        wait_ms: float,
        overload: str,
        done: Callable[[Outcome], None],
    ) -> None:
        """At most `queue` observations wait, none longer than `wait_ms`; `batch` are decided
        together. `done` hears of every outcome in the event loop, after whoever waits for it: it
        must not hold up the answer.
        """
        self.decider = decider
        self.queue = queue
        self.batch = batch
        self.wait = wait_ms / 1000
        self.overload = overload
        self.done = done
        self.costs = Costs()
        self.shed: dict[str, int] = {"queue": 0, "deadline": 0, "stopping": 0, "late": 0}
        self.batches = 0
        self._waiting: list[Waiting] = []
        self._rows_waiting = 0
        self._running: Deadlines | None = None
        self._ending = 0.0
        self._try_again = 0.0
        self.lag = 0.0
        self._stopping = False
        self._lock = threading.Lock()
        self._asleep = False
        """Whether the thread waits for its bell, or is about to."""
        self._answers: deque[Answers] = deque()
        """Those that the event loop has not yet heard of."""
        self._lent: Lent | None = None
        self._hung_up = threading.Event()
        self._untold: deque[Outcome] = deque()
        """Those answered, in their order, that `done` has not yet heard of."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="deciding", daemon=True)

    def start(self) -> None:
        """Begin to decide for the event loop that runs here."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beat = self._loop.create_task(self._watch())
        self._asked, self._decided = Bell(), Bell()
        self._loop.add_reader(self._decided.file, self._hear)
        self._thread.start()

    async def _watch(self) -> None:
        """Learn how far the event loop lags behind: what comes waits as long to be read."""
        assert self._loop is not None
        while True:
            due = self._loop.time() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            self.lag = max(self._loop.time() - due, LAG_KEPT * self.lag)
            self.catch_up()

    def catch_up(self) -> None:
        """In the event loop: let `done` hear of what was answered."""
        for _ in range(len(self._untold)):
            try:
                self.done(self._untold.popleft())
            except Exception:
                # Counts that fail must not end the beat, nor keep others from being counted.
                traceback.print_exc()

    def stop(self) -> None:
        """Turn away what still waits, and end the thread."""
        with self._lock:
            stopped, self._stopping = self._stopping, True
        if self._loop is None or stopped:
            return
        self._asked.ring()
        self._thread.join()
        if self._loop.is_closed():
            self._close()
        else:
            # In the loop's own thread, where no request can be between its place and its ring.
            self._loop.call_soon_threadsafe(self._hang_up)
            if threading.get_ident() != self._loop_thread:
                self._hung_up.wait(STOP_SECONDS)

    def _hang_up(self) -> None:
        """The last that the event loop hears of the thread."""
        assert self._loop is not None
        self._loop.remove_reader(self._decided.file)
        self._close()
        self._settle()
        self.catch_up()
        self._hung_up.set()

    def _close(self) -> None:
        self._asked.close()
        self._decided.close()

    @property
    def waiting(self) -> int:
        """Observations in the queue."""
        return self._rows_waiting

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits, nothing is being decided, and no connection is lent."""
        return not self._waiting and self._running is None and self._lent is None

    def lend(self, lent: Lent) -> None:
        """Have the thread read a connection too, from the event loop, until it gives that back."""
        with self._lock:
            if self._stopping:
                return lent.give_back()
            self._lent = lent
            asleep, self._asleep = self._asleep, False
        if asleep:
            self._asked.ring()

    def take_back(self) -> None:
        """Ask for the connection that is lent, if one is: its owner will hear when it is back."""
        with self._lock:
            lent = self._lent
            if lent is None:
                return
            lent.wanted = True
            asleep, self._asleep = self._asleep, False
        if asleep:
            self._asked.ring()

    def submit(
        self, ask: Ask, decided: Callable[[Outcome | Exception], None], lent: Lent | None = None
    ) -> Waiting:
        """Put a request into the queue; `decided` hears of its end.

        Both happen in the event loop, or, of a connection that is lent, in the thread that decides.
        """
        limit = self.wait if ask.deadline_ms is None else ask.deadline_ms / 1000
        # It may have waited so long to be read, and its answer may wait as long to be sent.
        held_up = 2 * self.lag if ask.deadline_ms is not None else 0.0
        one = Waiting(ask, decided, ask.arrived + limit - held_up, lent=lent)
        rows = len(ask.rows)
        with self._lock:
            if self._stopping:
                self.shed["stopping"] += 1
                raise OverloadError("the server is stopping: ask another, or again later")
            # A request larger than the queue is taken where nothing waits.
            full = bool(self._waiting) and self._rows_waiting + rows > self.queue
            if full and self.overload == "anchor":
                one.ask, one.fallback = ask.at_the_anchor(), "overload"
                full = self._rows_waiting + rows > ANCHORS_WAITING * self.queue
            if full:
                self.shed["queue"] += 1
                raise OverloadError(
                    f"{self._rows_waiting} observations wait already: ask again later"
                )
            self._waiting.append(one)
            self._rows_waiting += rows
            if self._running is not None:
                # A search that may end early makes room for this one.
                self._running.bring_forward(self._latest_start(one) - self._ending)
            asleep, self._asleep = self._asleep, False
        if asleep and lent is None:
            self._asked.ring()
        return one

    def _least(self, one: Waiting) -> float:
        """Seconds that a request takes at least: its first chunk, or all where it has no deadline.

        Twice what it should take, since it must be in time more often than not.
        """
        return 2 * self.costs.seconds(len(one.ask.rows), one.first)

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._stopping:
                    left, self._waiting = self._waiting, []
                    self._answer(
                        [(one, self._shed("stopping", "the server is stopping")) for one in left]
                    )
                    self._give_back()
                    return
                taken = self._take()
                self._running = self._deadlines(taken) if taken else None
                self._asleep = not taken
                lent = self._lent
                if lent is not None and (
                    lent.wanted
                    or not lent.here
                    or any(one.lent is None for one in taken)
                    or self._is_long(taken)
                ):
                    # Somebody else is there, or its client may have more to say, if only a ping.
                    self._give_back()
            if self._running is None:
                self._listen()
            else:
                self._decide(taken, self._running)

    def _is_long(self, taken: Sequence[Waiting]) -> bool:
        """Whether a client should be heard while these are decided."""
        each = (self.costs.seconds(len(one.ask.rows), one.ask.candidates) for one in taken)
        return sum(each) > SLICE_SECONDS

    def _listen(self) -> None:
        """Until there is something to do."""
        lent = self._lent
        if lent is None:
            return self._asked.wait()
        rung, come = lent.wait(self._asked.file)
        if rung:
            self._asked.wait()
        if come:
            try:
                lent.receive()
            except Exception:
                # As in `_decide`.
                traceback.print_exc()
                lent.give_back()

    def _give_back(self) -> None:
        """Leave the connection that was lent, if one was, to the event loop."""
        if self._lent is not None:
            self._lent.give_back()
            self._lent = None

    def _take(self) -> list[Waiting]:
        """The next batch, the nearest deadline first; what cannot be in time is turned away."""
        if not self._waiting:
            return []
        now = time.perf_counter()
        taken: list[Waiting] = []
        left: list[Waiting] = []
        away: list[tuple[Waiting, Outcome | Exception]] = []
        rows, seconds, fixed = 0, 2 * self.costs.seconds(0, 0), 0.0
        for one in sorted(self._waiting, key=turn):
            if one.gone:
                continue
            late = now + self._least(one) + reply_seconds(one) > one.deadline
            if late and not self._to_the_anchor(one, now) and not self._to_be_tried(one, now):
                said = "it cannot be decided before its deadline: ask again later"
                away.append((one, self._shed("deadline", said)))
                continue
            count = len(one.ask.rows)
            cost = self.costs.seconds(count, one.first, calls=0)
            whole = 0.0 if one.timed else cost
            # A search that may end at any time must not wait for one that may not.
            fits = (
                (not taken or one.timed is taken[0].timed)
                and rows + count <= self.batch
                and now + seconds + 2 * cost + reply_seconds(one) <= one.deadline
                and fixed + whole <= SLICE_SECONDS
            )
            if taken and not fits:
                left.append(one)
                continue
            taken.append(one)
            rows, seconds, fixed = rows + count, seconds + 2 * cost, fixed + whole
        self._answer(away)
        self._waiting = left
        self._rows_waiting = sum(len(one.ask.rows) for one in left)
        return taken

    def _to_be_tried(self, one: Waiting, now: float) -> bool:
        """Decide one that should be late all the same, now and then: costs are learnt from
        decisions alone, and were all turned away they would never be seen to fall.
        """
        if one.deadline <= now or now < self._try_again:
            return False
        self._try_again = now + TRY_SECONDS
        return True

    def _to_the_anchor(self, one: Waiting, now: float) -> bool:
        """Fall to the anchor where that is configured and still in time."""
        if self.overload != "anchor":
            return False
        anchor = one.ask.at_the_anchor()
        if now + 2 * self.costs.seconds(len(anchor.rows), 1) + reply_seconds(one) > one.deadline:
            return False
        one.ask, one.fallback = anchor, "overload"
        return True

    def _deadlines(self, taken: Sequence[Waiting]) -> Deadlines:
        """When each search must stop so that ranking and the answer are in time."""
        if not taken[0].timed:
            return Deadlines(np.full(len(taken), np.inf))
        rows = sum(len(one.ask.rows) for one in taken)
        chunk = self.costs.seconds(rows, CHUNK)
        # Ranking reads every candidate once, which costs little beside the critics.
        ranked = [(one, 0.1 * self.costs.seconds(rows, one.ask.candidates)) for one in taken]
        at = [one.deadline - reply_seconds(one) - 2 * chunk - cost for one, cost in ranked]
        deadlines = Deadlines(np.array(at))
        # What a search takes to end once it is told to: the chunk that it is at, and ranking.
        self._ending = chunk + max((cost for _, cost in ranked), default=0.0)
        if self._waiting:
            latest = min(self._latest_start(one) for one in self._waiting)
            deadlines.bring_forward(latest - self._ending)
        return deadlines

    def _latest_start(self, one: Waiting) -> float:
        """When a request must begin at the latest, so that its answer is in time."""
        return one.deadline - self._least(one) - reply_seconds(one) - REPLY_SECONDS

    def _decide(self, taken: list[Waiting], deadlines: Deadlines) -> None:
        jobs = [Job(one.ask, one.fallback) for one in taken]
        started = time.perf_counter()
        try:
            found = self.decider.decide(jobs, deadlines)
        except Exception as error:
            # A defect of ours must not end the thread: all who come later would wait for ever.
            traceback.print_exc()
            self._finish([(one, error) for one in taken])
            return
        now = time.perf_counter()
        self._finish(list(zip(taken, found, strict=True)))
        self._try_again = now + TRY_SECONDS
        self.batches += 1
        expected = self.costs.seconds(0, 0)
        for outcome in found:
            if isinstance(outcome, Outcome):
                scored = [int(decision.n_scored) for decision in outcome.decisions]
                expected += self.costs.seconds(len(scored), sum(scored) / len(scored), calls=0)
        self.costs.learn(expected, now - started)

    def _finish(self, answers: Answers) -> None:
        """Answer what was decided. First it is over: whoever hears of it may lend a connection."""
        with self._lock:
            self._running = None
        self._answer(answers)

    def _shed(self, reason: str, message: str) -> OverloadError:
        self.shed[reason] += 1
        return OverloadError(message)

    def _answer(self, answers: Answers) -> None:
        """Hand answers to the event loop, all in one call, and give those that are given here."""
        there = [answer for answer in answers if answer[0].lent is None]
        if there:
            self._answers.append(there)
            self._decided.ring()
        for one, outcome in answers:
            if one.lent is None:
                continue
            try:
                here = one.lent.may_answer(outcome)
            except Exception:
                # As in `_decide`.
                traceback.print_exc()
                one.lent.give_back()
                here = False
            if here:
                self._tell_all([(one, outcome)])
            elif self._loop is not None and not self._loop.is_closed():
                # Not by the bell, which may be heard before the connection is back.
                self._loop.call_soon_threadsafe(self._tell_all, [(one, outcome)])

    def _hear(self) -> None:
        """In the event loop, when the thread has rung."""
        self._decided.wait()
        self._settle()

    def _settle(self) -> None:
        while self._answers:
            self._tell_all(self._answers.popleft())

    def _tell_all(self, answers: Answers) -> None:
        for one, outcome in answers:
            try:
                self._tell(one, outcome)
            except Exception:
                # One that cannot be told must not keep the others from their answers.
                traceback.print_exc()

    def _tell(self, one: Waiting, outcome: Outcome | Exception) -> None:
        assert self._loop is not None
        if one.gone:
            return
        if not isinstance(outcome, Outcome):
            one.decided(outcome)
        elif time.perf_counter() > one.deadline:
            said = "it was decided after its deadline: ask again later"
            one.decided(self._shed("late", said))
        else:
            here = one.lent is not None and one.lent.here
            self._untold.append(outcome)
            one.decided(outcome if outcome.refusal is None else outcome.refusal)
            if not here:
                self._loop.call_soon(self.catch_up)
