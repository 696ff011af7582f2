"""The prefetcher of a consumer that pops: its requests, their sizes and times, and its buffer.

The consumer has a session with each partition group of the topic. The prefetcher asks sessions
while the application waits or comes for messages; at other times only for the rest of a request:

| what was asked for | is then |
|---|---|
| came, and went within `GROW_SECONDS` or did not last for a round | doubled, up to `prefetch` |
| lay here until a third of its lease was left | given back, and halved |

Invariants:
- A session is asked for more when half of its depth is gone from the buffer.
- Stale messages are given back after the request has ended, else it would bring them again.
- The buffer holds at most `prefetch_bytes` and an answer of each session.

Sources: TCP's slow start (RFC 5681).
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Self

import anyio

from raftmq.client.arguments import milliseconds, require
from raftmq.client.routing.requests import seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import TaskScope
from raftmq.errors import Unavailable
from raftmq.filters import compile as compile_filter
from raftmq.pop.actions import Action
from raftmq.pop.policy import INVISIBLE_MS_MAX, INVISIBLE_MS_MIN, Mode
from raftmq.pushed import Pushed
from raftmq.wire.directory import Use
from raftmq.wire.messages import TopicView

from .leases import HeldLease
from .prefetch_buffer import PrefetchBuffer, Taken
from .session import PopSession
from .settlements import Settlements, lease_ms
from .tally import Waiter

PREFETCH = 500
"""Messages asked for ahead at each leader."""
POLL_MS = 5_000
"""How long a request stands, in milliseconds, before the next one takes its place."""
TICK_SECONDS = 0.25
"""Longest time between two checks of the leases."""
DEPTH_FIRST = 32
"""Messages asked for ahead at first."""
COUNT_MAX = 100_000
"""The most messages of one request."""
GROW_SECONDS = 0.1
"""If the application drains an answer faster than this, the depth grows."""
HEARD_SECONDS = 1.0
"""A request that has stood for this time has reached its leader."""


@dataclass(frozen=True, slots=True)
class PopSettings:
    """See `Client.consumer`."""

    group: str
    mode: Mode
    is_latest: bool
    prefetch: int
    prefetch_bytes: int
    invisible: float | None
    renew: float | None
    filter: str | None = None

    def use(self, topic: str) -> Use:
        """What such a consumer does, for the directory."""
        return Use("ordered" if self.mode is Mode.ORDERED else "pop", topic, self.group)

    def validate(self) -> Self:
        """This object, or `Rejected`."""
        require(0 <= self.prefetch <= COUNT_MAX, f"prefetch is 0 to {COUNT_MAX}")
        require(self.prefetch_bytes > 0, "prefetch_bytes must be positive")
        if self.invisible is not None:
            invisible_ms(self.invisible)
        if self.renew is not None:
            lease_ms(self.renew, "renew")
        if self.filter is not None:
            compile_filter(self.filter)
        return self


class Prefetcher:
    """Pops ahead for one consumer."""

    def __init__(
        self,
        router: Router,
        tasks: TaskScope,
        settings: PopSettings,
        view: TopicView,
        settlements: Settlements,
    ) -> None:
        self._router = router
        self._tasks = tasks
        self._settings = settings
        self._view = view
        self._news = anyio.Event()
        # Calls that wait for messages: the number that each wants, and its event, in order.
        self._waiting: deque[tuple[int, anyio.Event]] = deque()
        self._is_closing = False
        self._mean_bytes = 1024
        self.is_paused = False
        """True: operators have paused the consumer, which neither asks nor hands out."""
        self.invisible_ms = 0
        """Length of the leases of later requests, in milliseconds; 0: by the policy."""
        if settings.invisible is not None:
            self.invisible_ms = invisible_ms(settings.invisible)
        self.buffer = PrefetchBuffer()
        """Messages that came and were not handed on."""
        self.settlements = settlements
        """Settles the messages."""
        self.sessions: dict[int, PopSession] = {}
        """By partition group."""
        self.follow_topic()

    # -- for the consumer ------------------------------------------------------------------------

    def take(self, count: int, now: float) -> list[Taken]:
        """Up to `count` messages that are here."""
        return [] if self.is_paused else self.buffer.take(count, now, self._give_back)

    def take_one(self) -> Taken | None:
        """A message that is here."""
        if self.is_paused:
            return None
        return self.buffer.take_one(anyio.current_time(), self._give_back)

    def check(self) -> None:
        """Raise a session's error; called once the buffer is empty."""
        for session in self.sessions.values():
            # Raised once: the messages are handed out again, and the next call goes on.
            unreadable, session.unreadable = session.unreadable, None
            if unreadable is not None:
                raise unreadable
            if session.error is not None:
                raise session.error

    def ask(
        self, count: int, *, wait: float = float("inf"), only: Container[int] | None = None
    ) -> None:
        """Ask each idle session that runs low; with a count of 0 only those that have more for us,
        or may have.

        Args:
            count: the number of messages that the application wants.
            wait: for how many seconds.
            only: ask no other partition groups than these.
        """
        settings, buffer = self._settings, self.buffer
        is_full = buffer.bytes >= settings.prefetch_bytes
        if is_full or self.is_paused or self._is_closing:
            return
        # Most calls find all of them asked already.
        idle = [session for session in self.sessions.values() if session.is_idle]
        if not idle:
            return
        share = -(-count // len(self.sessions))
        now = anyio.current_time()
        for session in idle:
            if not (count or session.is_more or session.credit):
                continue
            if only is not None and session.group not in only:
                continue
            buffered = buffer.counts.get(session.group, 0)
            is_low = count > 0 and buffered <= max(session.depth, share) // 2
            if is_low or session.is_more:
                is_quick = session.filled_at is not None and now - session.filled_at < GROW_SECONDS
                if is_quick or session.is_short:
                    session.depth = min(2 * session.depth, settings.prefetch)
                    session.is_short = False
                depth = max(session.depth, share)
                room = (settings.prefetch_bytes - buffer.bytes) // self._mean_bytes
                wanted = max(min(depth - buffered, max(room, 1), COUNT_MAX), 0)
                wait_ms, is_kept = self._wait_ms(wait), wait > 0 and settings.prefetch > 0
                session.ask(
                    wanted, wait_ms=wait_ms, invisible_ms=self.invisible_ms, is_kept=is_kept
                )
            elif session.credit:
                session.ask_rest(invisible_ms=self.invisible_ms)

    def ask_again(self) -> None:
        """Make an answer due from each session that may have messages, and end its request. If the
        request has stood for `HEARD_SECONDS` without an answer, the session has no messages."""
        before = anyio.current_time() - HEARD_SECONDS
        for session in self.sessions.values():
            session.is_due = not session.is_waiting_since(before)
            if session.is_due:
                session.leave()

    def ask_due(self, count: int) -> bool:
        """Ask sessions with a due answer for the messages they have; False: no answer is due."""
        due = {s.group for s in self.sessions.values() if s.is_due and s.error is None}
        if due:
            self.ask(count, wait=0, only=due)
        return bool(due)

    def check_due(self, since: float) -> None:
        """Raise `Unavailable` if an answer is due and `since` is too long ago: a leader has said
        "try again" all the time."""
        seconds = self._router.seconds_max
        if anyio.current_time() < since + seconds:
            return
        whys = [s.why for s in self.sessions.values() if s.is_due]
        why = next(filter(None, whys), self._router.last_error)
        text = (
            f"a leader of topic {self._view.name!r} has not reported its messages for {seconds:g} s"
        )
        raise Unavailable(f"{text}: {why}")

    @property
    def first_group(self) -> int:
        """The partition group of the topic's first queue, which never changes."""
        return self._view.groups[0]

    async def wait(self, deadline: float, count: int = 0) -> None:
        """Wait for news until `deadline`. Cancelling changes nothing.

        With a count the call waits in line. The wait ends when the buffer holds more messages than
        the calls ahead take, or when it is this call's turn to ask for more or to raise an error.

        Raises:
            Unavailable: a leader has been lost for too long.
        """
        sessions = list(self.sessions.values())
        for session in sessions:
            # The application waits for a round trip, as the last answer was full.
            session.is_short |= session.is_asking and session.filled_at is not None
        seconds = self._router.seconds_max
        lost = [s.lost_since for s in sessions if s.lost_since is not None]
        until = min([deadline, *(since + seconds for since in lost)])
        with anyio.move_on_after(until - anyio.current_time()):
            await (self._wait_turn(count) if count else self._news.wait())
            return
        now = anyio.current_time()
        if any(s.lost_since is not None and now >= s.lost_since + seconds for s in sessions):
            for session in sessions:
                session.forgive()
            raise Unavailable(
                f"a leader of topic {self._view.name!r} has not been found for {seconds:g} s: "
                f"{self._router.last_error}"
            )

    def leave(self) -> None:
        """End all requests."""
        for session in self.sessions.values():
            session.leave()

    async def _wait_turn(self, count: int) -> None:
        mine = (count, anyio.Event())
        self._waiting.append(mine)
        try:
            await mine[1].wait()
        except BaseException:
            if not mine[1].is_set():
                self._waiting.remove(mine)
            elif self._waiting:
                # This call was to take messages, or to ask for more.
                self._waiting.popleft()[1].set()
            raise

    def tell(self) -> None:
        """Wake the waiting calls that have something to act on: a call each for the messages that
        are here, and one at least, which asks for more."""
        self._news.set()
        self._news = anyio.Event()
        left = sum(self.buffer.counts.values())
        for session in self.sessions.values():
            if session.error or session.unreadable or session.lost_since is not None:
                left = COUNT_MAX * len(self._waiting)
        while self._waiting:
            count, event = self._waiting.popleft()
            event.set()
            left -= count
            if left <= 0:
                break

    def pass_on(self) -> None:
        """A call ends: if it leaves messages, or a session that no call has asked, the next call
        has its turn."""
        if not self._waiting:
            return
        if self.buffer or not all(session.is_asking for session in self.sessions.values()):
            self._waiting.popleft()[1].set()

    def follow_topic(self) -> None:
        """The topic may have got queues in other partition groups."""
        view = self._router.topics.get(self._view.name, self._view)
        # A topic that was deleted and created again shares only the name with this one.
        if view.id != self._view.id:
            return
        for group in sorted({*view.groups} - {*self.sessions}):
            session = self.sessions[group] = PopSession(
                self._router, self._tasks, self.settlements, group, self.buffer, self._hear
            )
            session.depth = min(self._settings.prefetch, DEPTH_FIRST)
        self.tell()

    def obey(self, pushed: Pushed) -> None:
        """Operators push these settings. In a pause the messages that are here go back in time."""
        self.is_paused = pushed.consumer.is_paused
        if self.is_paused:
            self.leave()
        self.tell()

    # -- leases ----------------------------------------------------------------------------------

    async def make_invisible(self, milliseconds: int, timeout: float) -> None:
        """Set the length of the leases of later pops, and of those in the buffer. No lease gets
        shorter: the buffered messages of longer leases go back.

        Raises:
            As `Settlements.settle`.
        """
        left = seconds_left(self._router, timeout)
        waiter = Waiter()
        extended = self._extend_short(milliseconds, waiter)
        while waiter.open:
            await self.settlements.finish(waiter, left())
            for lease in extended:
                lease.invisible_ms = milliseconds
                lease.set_stale(anyio.current_time())
            # Messages of a request with the old length may have come meanwhile.
            waiter = Waiter()
            extended = self._extend_short(milliseconds, waiter, is_again=True)

    def _extend_short(
        self, milliseconds: int, waiter: Waiter, *, is_again: bool = False
    ) -> list[HeldLease]:
        """Change the length of the leases to come, and of those in the buffer.

        A lease that is too short is extended as a whole. No lease is shortened, since the
        application may have some of its messages in hand: the buffered messages of a longer lease
        are given back. With `is_again`, leases asked for with this length stay as they are.

        Returns:
            The leases being extended; `waiter` waits for them, and for the messages that go back.
        """
        if milliseconds != self.invisible_ms:
            # A standing request would bring leases of the old length.
            self.leave()
        self.invisible_ms = milliseconds
        now = anyio.current_time()
        least, until = now + 0.9 * milliseconds / 1000, now + milliseconds / 1000
        short: list[HeldLease] = []
        for lease in self.buffer.leases():
            is_another = lease.invisible_ms != milliseconds
            if is_another and lease.latest_deadline(now) > until:
                self._give_back_awaited(lease, waiter)
            elif is_another or (lease.deadline < least and not is_again):
                self.settlements.sender(lease.group).extend(lease, milliseconds, waiter)
                short.append(lease)
        return short

    async def look_after_leases(self) -> None:
        """Give back stale messages; extend the leases that the application works on. Runs until it
        is cancelled."""
        renew = self._settings.renew
        pace = [each / 8 for each in (renew, self._settings.invisible) if each is not None]
        while True:
            await anyio.sleep(min([TICK_SECONDS, *pace]))
            now = anyio.current_time()
            self.settlements.check_time(now)
            for session in self.sessions.values():
                session.check_time(now)
                if renew is not None:
                    session.renew(renew, now)
            stale = [lease for lease in self.buffer.leases() if lease.stale_at <= now]
            for lease in stale:
                self._give_back(lease)
            if stale:
                self.buffer.sweep()

    async def put_away(self) -> None:
        """Stop asking, and give back the messages that are here or on their way."""
        self._is_closing = True
        unheard = [session for session in self.sessions.values() if session.is_unheard]
        for session in unheard:
            session.leave(at_end=True)
        # A message that the leader handed out must be listed here before it can be given back.
        while self._list_rest(unheard):
            await self._news.wait()
            unheard = [session for session in unheard if session.is_unheard or session.is_more]
        waiter = Waiter()
        for lease in self.buffer.leases():
            self.settlements.give_back(lease, waiter)
        self.buffer.clear()
        self.settlements.join_all(waiter)
        await waiter.wait()
        for session in self.sessions.values():
            session.depart()

    # -- inside ----------------------------------------------------------------------------------

    def _wait_ms(self, seconds: float) -> int:
        """Milliseconds that a request stands for a call that waits for `seconds`."""
        if seconds <= 0 or self._settings.prefetch == 0:
            return round(min(POLL_MS, max(0.0, seconds * 1000)))
        return POLL_MS

    def _hear(self) -> None:
        """Messages came, or a session is idle again: ask for the rest and wake the calls."""
        buffered = sum(self.buffer.counts.values())
        if buffered:
            self._mean_bytes = max(1, self.buffer.bytes // buffered)
        self.ask(0)
        self.tell()

    def _give_back(self, lease: HeldLease) -> None:
        """Give back the buffered messages of a stale lease, and ask the session for fewer ahead."""
        session = self.sessions[lease.group]
        session.depth = max(session.depth // 2, 1)
        session.is_short = False
        session.leave()
        # A waiter of its own keeps the result out of the tally, which the application reads.
        self.settlements.give_back(lease, Waiter())

    def _give_back_awaited(self, lease: HeldLease, waiter: Waiter) -> None:
        """Give back the buffered messages of a lease; `waiter` waits for the result."""
        bits = lease.buffered
        self.settlements.give_back(lease, Waiter())
        # The call only joins: if it took the messages back at an early end, they would be neither
        # buffered nor given back.
        self.settlements.sender(lease.group).settle(lease, Action.GIVE_BACK, bits, waiter)

    def _list_rest(self, sessions: list[PopSession]) -> bool:
        """Ask sessions for handed-out messages that have not come; False: no answer will come. A
        session that looks for its leader is asked once the leader is found."""
        for session in sessions:
            if session.is_idle:
                session.ask(0, wait_ms=0, invisible_ms=self.invisible_ms)
        return any(session.is_asking or session.lost_since is not None for session in sessions)


def invisible_ms(seconds: float) -> int:
    """The length of a lease that a consumer asks for, in milliseconds.

    Raises:
        Rejected: `BAD_ARGUMENT`, the length is out of its range: a shorter lease would run out on
            its way.
    """
    asked = milliseconds(seconds, "invisible")
    shortest, longest = INVISIBLE_MS_MIN // 1000, INVISIBLE_MS_MAX // 1000
    is_one = INVISIBLE_MS_MIN <= asked <= INVISIBLE_MS_MAX
    require(is_one, f"invisible is {shortest} to {longest} s, not {seconds}")
    return asked
