"""The queues that are assigned to a consumer: taken up, given up, and lost.

The consumer runs two tasks: one sends heartbeats and keeps the newest answer; the other brings the
consumer's queues into line with that answer. Requests to data groups run in tasks of their own, so
that a group without a leader delays only its own queues.

    heartbeat ──> lost       dropped at once, with its buffered messages
             ──> to give up  no longer read; released when the application is done with its
                             messages, or when a session is over
             ──> new         its epoch is claimed, its committed offset fetched, then it is read

A queue to be given up waits until the offset after its last handed-out message is committed, so
that the next owner begins there; after a session at the latest the queue is given up as it is.

By its own clock the consumer knows until when its lease surely runs. After that, until a heartbeat
is answered again, no message is handed out: others may own its queues by now.

Invariants:
- A queue is read from its committed offset, as its log had it after the claim of the epoch.
- A message's queue was owned when the message was handed out, as far as clocks run alike; at a
  commit the queue was owned in any case, since the queue's log checks the epoch.
- A queue without a committed offset gets one when it is first taken up, where reading starts: the
  next owner, and members that come later, start from there.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from math import inf
from typing import Protocol

import anyio

from raftmq.client.routing.requests import after, seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.supervisor import TaskScope
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.wire.assignment import Assigned

from .membership import Member
from .positions import Cursor
from .read_ahead import Fetcher

BEATS = 6
"""Heartbeats in a session: the leader renews a lease when a fifth of the lease is gone."""
LEAVE_SECONDS_MAX = 5.0
"""A consumer that ends tries to leave its group for this time."""
LEAVE_SOON_SECONDS = 1.0
"""The limit for a consumer whose opening failed or was cancelled."""
_FIRST_SHARE = 0.9
"""Share of the time for opening that joining, and then taking up queues, may use."""
WAIT_MS_MAX = 3_000
"""Longest wait of a heartbeat for news: requests without an answer are sent again after 5 s."""


class Owner(Protocol):
    """The part of the consumer that `AssignedQueues` calls."""

    @property
    def commits_by_itself(self) -> bool:
        """True if the consumer commits the done offsets by itself."""

    async def groups_of(self, queues: Iterable[int]) -> dict[int, int]:
        """Queue within the topic → its partition group."""

    async def take_up(self, group: int, epochs: Mapping[int, int]) -> list[Cursor]:
        """Claim queues of a partition group under these epochs; returns cursors at the offsets to
        read on from, without queues that another consumer has claimed meanwhile."""

    async def commit_done(self, cursors: list[Cursor]) -> None:
        """Commit the done offsets."""


class AssignedQueues:
    """The queues of one consumer, as the catalog deals them out."""

    def __init__(self, owner: Owner, member: Member, router: Router) -> None:
        self._owner = owner
        self._member = member
        self._router = router
        self._session = member.join_command.session_ms / 1000
        # Set by `begin`.
        self._fetcher: Fetcher
        self._tasks: TaskScope
        self._wanted: Assigned | None = None
        # Set when `line_up` has work to do.
        self._poked = anyio.Event()
        # Queue that is being taken up → its epoch.
        self._taking: dict[int, int] = {}
        # Queue to be given up → its cursor, and until when the release may wait.
        self._leaving: dict[int, tuple[Cursor, float]] = {}
        # Partition groups with a commit of leaving queues under way.
        self._committing: set[int] = set()
        # Queue → the epoch under which it was given up, or another consumer claimed it: an older
        # answer still lists the queue.
        self._gone: dict[int, int] = {}
        self._lost: dict[int, Cursor] = {}
        self._lease_until = 0.0
        # Lower bound of `silent_since`: a call has raised the silence before.
        self._forgiven = 0.0
        # True while this consumer is no member.
        self._is_out = False
        # True once the consumer ends: it must not join again.
        self._is_over = False
        self.error: RaftmqError | None = None
        """Why this consumer can no longer be a member."""
        self.old_queue_count: int | None = None
        """Number of the topic's queues when the group began there; None: no leader told it. Kept
        while this consumer is no member: a queue being taken up meanwhile may still be its own."""

    @property
    def is_leased(self) -> bool:
        """True while the lease surely runs, by this process's clock."""
        return anyio.current_time() < self._lease_until

    @property
    def silent_since(self) -> float | None:
        """Since when the lease may have run out, by the event loop's clock; None: it runs."""
        return None if self.is_leased else max(self._lease_until, self._forgiven)

    def forgive(self) -> None:
        """Count the time of silence from now."""
        self._forgiven = anyio.current_time()

    @property
    def leaving(self) -> list[Cursor]:
        """Cursors of queues that are still owned and no longer read."""
        return [cursor for cursor, _ in self._leaving.values()]

    async def begin(self, fetcher: Fetcher, tasks: TaskScope, timeout: float) -> None:
        """Join, take up the first queues, and go on in the background.

        After a failure or a cancel the consumer leaves the group again, if it can within a second:
        else it holds its share of the queues until a session is over.

        Raises:
            Rejected: see `Member.join`.
            Unavailable: no leader took the consumer as a member in time.
            OutcomeUnknown: it is or may be a member, and did not get its queues in time.
        """
        self._fetcher, self._tasks = fetcher, tasks
        left = seconds_left(self._router, timeout)
        try:
            # The rest of the time is for leaving, here and below.
            await self._member.join(timeout=left() * _FIRST_SHARE)
        except (Rejected, Unavailable):
            raise
        except BaseException:
            await self._leave_soon(left())
            raise
        try:
            with after([self._member.join_command.member], "the joining of member"):
                seconds = left() * _FIRST_SHARE
                await self._router.within(seconds, self._take_up_first(), "taking up its queues")
        except BaseException:
            await self._leave_soon(left())
            raise

    async def _leave_soon(self, timeout: float) -> None:
        with anyio.move_on_after(LEAVE_SOON_SECONDS, shield=True):
            await self.end(min(timeout, LEAVE_SOON_SECONDS))

    async def _take_up_first(self) -> None:
        await self._hear(0)
        self._tasks.start(self.beat)
        self._tasks.start(self.line_up)
        while not self._held().keys() >= self._to_keep().keys():
            await self._fetcher.wait_news()
            self.check()

    async def beat(self) -> None:
        """Send heartbeats until cancelled, or until this consumer can no longer be a member."""
        wait_ms = min(WAIT_MS_MAX, int(self._session * 1000 / BEATS))
        failures = 0
        while self._goes_on():
            try:
                if self._is_out:
                    await self._member.join(is_again=True)
                    self._is_out = False
                await self._hear(wait_ms)
                failures = 0
            except Rejected as error:
                if not self._goes_on():
                    return
                # Refused while joining again, or not for a lapsed lease: another try cannot help.
                if self._is_out or error.reason is not Reason.FENCED:
                    self._fail(error)
                self._be_out()
            except (Unavailable, OutcomeUnknown) as error:
                self._router.last_error = str(error)
                failures += 1
                await anyio.sleep(self._router.delay(failures))

    async def line_up(self) -> None:
        """Bring the queues into line with the newest answer, at each poke and each due release."""
        failures = 0
        while self.error is None:
            due = min((until for _, until in self._leaving.values()), default=inf)
            with anyio.move_on_after(due - anyio.current_time()):
                await self._poked.wait()
            self._poked = anyio.Event()
            self._stop_reading()
            self._take_up_new()
            self._commit_leaving()
            try:
                await self._give_up()
                failures = 0
            except RaftmqError as error:
                self._router.last_error = str(error)
                failures += 1
                await anyio.sleep(self._router.delay(failures))
                self.poke()

    def _goes_on(self) -> bool:
        return self.error is None and not self._is_over

    def check(self) -> None:
        """Raise the error for which this consumer can no longer be a member, if there is one."""
        if self.error is not None:
            raise self.error

    def poke(self) -> None:
        """Wake `line_up`: the application has moved on, or a new answer came."""
        self._poked.set()

    def lose(self, cursors: list[Cursor]) -> None:
        """Another consumer has claimed these queues: stop reading them, and never commit them."""
        reading = self._fetcher.cursors
        self._fetcher.remove([c for c in cursors if reading.get(c.queue_number) is c])
        for cursor in cursors:
            leaving = self._leaving.get(cursor.queue)
            if leaving is not None and leaving[0] is cursor:
                del self._leaving[cursor.queue]
            # A cursor lost while it was taken up has no commit, and handed out no message.
            if cursor.committed is not None and cursor.handed != cursor.committed:
                self._lost[cursor.queue] = cursor

    def take_lost(self) -> list[int]:
        """Queues lost with messages handed out and not committed; each is returned once."""
        lost, self._lost = self._lost, {}
        return sorted(lost)

    async def end(self, timeout: float | None) -> None:
        """Leave the group: the queues are free for others at once, or, without an answer in a few
        seconds, when the lease has run out."""
        self._is_over = True
        if self.error is not None:
            return
        seconds = LEAVE_SECONDS_MAX if timeout is None else min(timeout, LEAVE_SECONDS_MAX)
        try:
            await self._member.leave(seconds)
        except RaftmqError as error:
            self._router.last_error = str(error)

    # -- inside ----------------------------------------------------------------------------------

    async def _hear(self, wait_ms: int) -> None:
        version = self._wanted.version if self._wanted is not None else 0
        assigned, until = await self._member.heartbeat(version, wait_ms)
        was_leased = self.is_leased
        self._lease_until = max(self._lease_until, until)
        if assigned.version > version:
            self._wanted, self.old_queue_count = assigned, assigned.old_queue_count
            owned = self._owned()
            self.lose([c for c in self._held().values() if owned.get(c.queue) != c.epoch])
            self.poke()
        if not was_leased or assigned.version > version:
            # Messages held back while the lease was in doubt may be handed out now.
            self._fetcher.tell()

    def _be_out(self) -> None:
        """The lease ran out without an answer: all queues are lost. `beat` joins again."""
        self._is_out = True
        # The lease ends now at the latest. Not 0: a silence since then would make a fetch raise.
        self._lease_until = min(self._lease_until, anyio.current_time())
        self._wanted = None
        self._gone.clear()
        self.lose(list(self._held().values()))

    def _fail(self, error: RaftmqError) -> None:
        self.error = error
        self._fetcher.tell()
        self.poke()

    def _owned(self) -> dict[int, int]:
        """Queue → epoch, of all queues that this consumer owns by the newest answer."""
        if self._wanted is None:
            return {}
        owned = zip(self._wanted.queues, self._wanted.epochs, strict=True)
        return {queue: epoch for queue, epoch in owned if self._gone.get(queue) != epoch}

    def _to_keep(self) -> dict[int, int]:
        """Queue → epoch, of the owned queues that are not to be given up."""
        giving_up = set(self._wanted.giving_up) if self._wanted is not None else set()
        return {queue: epoch for queue, epoch in self._owned().items() if queue not in giving_up}

    def _held(self) -> dict[int, Cursor]:
        """Queue → cursor, of the queues being read and of those waiting to be given up."""
        return {c.queue: c for c in [*self._fetcher.cursors.values(), *self.leaving]}

    def _stop_reading(self) -> None:
        until = anyio.current_time() + self._session
        keep = self._to_keep()
        stopped = [c for c in self._fetcher.cursors.values() if c.queue not in keep]
        self._fetcher.remove(stopped)
        self._leaving |= {cursor.queue: (cursor, until) for cursor in stopped}

    # Taking up

    def _take_up_new(self) -> None:
        held = self._held()
        new = {
            queue: epoch
            for queue, epoch in self._to_keep().items()
            if queue not in held and self._taking.get(queue) != epoch
        }
        if new:
            self._taking |= new
            self._tasks.start(partial(self._take_up, new))

    async def _take_up(self, epochs: dict[int, int]) -> None:
        """Take up queues, each partition group's in a task of its own."""
        failures = 0
        while True:
            try:
                groups = await self._owner.groups_of(epochs)
                break
            except Rejected as error:
                self._fail(error)
                return
            except RaftmqError as error:
                self._router.last_error = str(error)
                failures += 1
                await anyio.sleep(self._router.delay(failures))
        by_group: dict[int, dict[int, int]] = {}
        for queue, epoch in epochs.items():
            by_group.setdefault(groups[queue], {})[queue] = epoch
        for group, part in by_group.items():
            self._tasks.start(partial(self._take_up_of, group, part))

    async def _take_up_of(self, group: int, epochs: dict[int, int]) -> None:
        failures = 0
        while wanted := self._still(epochs):
            try:
                cursors = await self._owner.take_up(group, wanted)
            except Rejected as error:
                self._fail(error)
                return
            except RaftmqError as error:
                self._router.last_error = str(error)
                failures += 1
                await anyio.sleep(self._router.delay(failures))
                continue
            still = self._still(wanted)
            self._fetcher.add(cursor for cursor in cursors if cursor.queue in still)
            taken = {cursor.queue for cursor in cursors}
            self._gone |= {q: epoch for q, epoch in wanted.items() if q not in taken}
            break
        for queue, epoch in epochs.items():
            if self._taking.get(queue) == epoch:
                del self._taking[queue]
        self._fetcher.tell()
        self.poke()

    def _still(self, epochs: dict[int, int]) -> dict[int, int]:
        """The given queues that the assignment still grants under the given epochs."""
        keep = self._to_keep()
        return {queue: epoch for queue, epoch in epochs.items() if keep.get(queue) == epoch}

    # Giving up

    def _commit_leaving(self) -> None:
        if not self._owner.commits_by_itself:
            return
        undone: dict[int, list[Cursor]] = {}
        for cursor in self.leaving:
            if cursor.done != cursor.committed and cursor.group not in self._committing:
                undone.setdefault(cursor.group, []).append(cursor)
        for group, cursors in undone.items():
            self._committing.add(group)
            self._tasks.start(partial(self._commit_of, group, cursors))

    async def _commit_of(self, group: int, cursors: list[Cursor]) -> None:
        try:
            await self._owner.commit_done(cursors)
        except RaftmqError as error:
            self._router.last_error = str(error)
            await anyio.sleep(self._router.delay(1))
        self._committing.discard(group)
        self.poke()

    async def _give_up(self) -> None:
        """Release the leaving queues that are committed or have waited for a session."""
        now = anyio.current_time()
        ready = {
            queue: cursor
            for queue, (cursor, until) in self._leaving.items()
            if cursor.handed == cursor.committed or until <= now
        }
        held, keep = self._held(), self._to_keep()
        # A queue that was never taken up can be released at once.
        epochs = {q: e for q, e in self._owned().items() if q not in held and q not in keep}
        epochs |= {queue: cursor.epoch for queue, cursor in ready.items()}
        if not epochs:
            return
        for queue, cursor in ready.items():
            # Off `_leaving` before the release: this consumer must not commit the queue after it.
            del self._leaving[queue]
            if cursor.handed != cursor.committed:
                self._lost[queue] = cursor
        self._gone |= epochs
        try:
            await self._member.release(epochs)
        except RaftmqError:
            # The next round releases them again, as owned queues that are not held here.
            self._gone = {q: e for q, e in self._gone.items() if epochs.get(q) != e}
            raise
