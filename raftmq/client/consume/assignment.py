"""The queues that are assigned to a consumer: taken up, given up, and lost.

Two tasks of the consumer: one sends heartbeats and keeps the newest answer; the other brings
the consumer's queues into line with it. What has to ask a data group is done in tasks of their own,
so that one without a leader holds up nothing but its queues.

    heartbeat ──> lost       dropped at once, whatever is buffered
             ──> to give up  not read any more; when the application is done with what it has of
                             it, or in time: released
             ──> new         its epoch is claimed, what is committed is read, then it is read

A queue that is to be given up waits until all that was handed out of it is committed, so that the
next owner begins just there; at the latest after a session it is given up as it is.

By its own clock the consumer knows until when its lease surely runs. After that, until it is heard
again, nothing more is handed out: others may own its queues by now.

Invariants:
- A queue is read from its committed offset, as its log had it after the claim of the epoch.
- What is handed out was owned when it was handed out, as far as clocks run alike; what is committed
  was owned in any case, since the log of the queue checks the epoch.
- A queue without a committed offset gets one when it is first taken up, where reading starts: the
  next owner, and members that come later, start from there.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from math import inf
from typing import Protocol

import anyio

from raftmq.client.routing.router import Router
from raftmq.client.supervisor import TaskScope
from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable
from raftmq.wire.assignment import Assigned

from .membership import Member
from .offsets import after, seconds_left
from .read_ahead import Cursor, Fetcher

BEATS = 6
"""Heartbeats in a session: the leader renews a lease when a fifth of it is gone."""
LEAVE_SECONDS_MAX = 5.0
"""A consumer that ends tries to leave for this time."""
LEAVE_SOON_SECONDS = 1.0
"""The same for one that could not be opened, or was cancelled meanwhile."""
_FIRST_SHARE = 0.9
"""Share of the time for opening that joining, and then taking up queues, may use."""
WAIT_MS_MAX = 3_000
"""A heartbeat waits for news no longer: requests without an answer are sent again after 5 s."""


class Owner(Protocol):
    """What is needed of the consumer."""

    @property
    def commits_by_itself(self) -> bool:
        """True if what the application is done with is committed without being told."""

    async def groups_of(self, queues: Iterable[int]) -> dict[int, int]:
        """Queue within the topic → its partition group."""

    async def take_up(self, group: int, epochs: Mapping[int, int]) -> list[Cursor]:
        """Claim queues of a partition group under these epochs and find where to read on; without
        those that another one has claimed meanwhile."""

    async def commit_done(self, cursors: list[Cursor]) -> None:
        """Commit what the application is done with."""


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
        # Set when there is something to do for `line_up`.
        self._poked = anyio.Event()
        # Queues that are being taken up, and under which epoch.
        self._taking: dict[int, int] = {}
        # Queues that are to be given up: their cursors, and until when that may wait.
        self._leaving: dict[int, tuple[Cursor, float]] = {}
        # Partition groups in which a commit of what is left is under way.
        self._committing: set[int] = set()
        # Queue → the epoch under which it was given up, or claimed by another one: an answer that
        # is older still has it.
        self._gone: dict[int, int] = {}
        self._lost: dict[int, Cursor] = {}
        self._lease_until = 0.0
        # `silent_since` is no earlier: a call has raised that silence.
        self._forgiven = 0.0
        # True while this consumer is no member.
        self._is_out = False
        # True once the consumer ends: it must not join again.
        self._is_over = False
        self.error: RaftmqError | None = None
        """Why this consumer can no longer be a member."""
        self.old_queue_count: int | None = None
        """How many queues the topic had when the group began there; None: no leader said so. Kept
        while this consumer is no member: what it is taking up meanwhile may still be its own."""

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
        """Join, take up what there is at once, and go on in the background.

        If it fails or is cancelled it leaves the group again, as far as that can be said within a
        second: else it holds its share of the queues until a session is over.

        Raises:
            Rejected: see `Member.join`.
            Unavailable: no leader took it as a member in time.
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
                if self._is_out or error.reason is not Reason.FENCED:
                    self._fail(error)
                self._be_out()
            except (Unavailable, OutcomeUnknown) as error:
                self._router.last_error = str(error)
                failures += 1
                await anyio.sleep(self._router.delay(failures))

    async def line_up(self) -> None:
        """Bring the queues into line with what was heard, whenever there is something to do."""
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
        """Raise why this consumer can no longer be a member, if that is so."""
        if self.error is not None:
            raise self.error

    def poke(self) -> None:
        """The application has moved on, or something was heard: look what can be done."""
        self._poked.set()

    def lose(self, cursors: list[Cursor]) -> None:
        """Another consumer has claimed these queues: stop reading them, and never commit them."""
        reading = self._fetcher.cursors
        self._fetcher.remove([c for c in cursors if reading.get(c.queue_number) is c])
        for cursor in cursors:
            leaving = self._leaving.get(cursor.queue)
            if leaving is not None and leaving[0] is cursor:
                del self._leaving[cursor.queue]
            # One that was lost while it was taken up has committed nothing, and handed out nothing.
            if cursor.committed is not None and cursor.handed != cursor.committed:
                self._lost[cursor.queue] = cursor

    def take_lost(self) -> list[int]:
        """Queues lost with messages handed out and not committed; each is returned once."""
        lost, self._lost = self._lost, {}
        return sorted(lost)

    async def end(self, timeout: float | None) -> None:
        """Leave the group: the queues are free for others at once, or if that cannot be said in a
        few seconds, when the lease has run out."""
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
            # What was held back may be handed out.
            self._fetcher.tell()

    def _be_out(self) -> None:
        """The lease ran out unheard: all queues are lost. Next comes a new membership."""
        self._is_out = True
        # Silent from now on, at the latest: a longer silence would end a fetch.
        self._lease_until = min(self._lease_until, anyio.current_time())
        self._wanted = None
        self._gone.clear()
        self.lose(list(self._held().values()))

    def _fail(self, error: RaftmqError) -> None:
        self.error = error
        self._fetcher.tell()
        self.poke()

    def _owned(self) -> dict[int, int]:
        """Queue → epoch, of all that this consumer owns as far as was heard."""
        if self._wanted is None:
            return {}
        owned = zip(self._wanted.queues, self._wanted.epochs, strict=True)
        return {queue: epoch for queue, epoch in owned if self._gone.get(queue) != epoch}

    def _to_keep(self) -> dict[int, int]:
        """The same without those that are to be given up."""
        giving_up = set(self._wanted.giving_up) if self._wanted is not None else set()
        return {queue: epoch for queue, epoch in self._owned().items() if queue not in giving_up}

    def _held(self) -> dict[int, Cursor]:
        """Queue → cursor, of all that are read, or were until a moment ago."""
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
        """Those of these queues that are to be taken up under these epochs even now."""
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
        """Release what may be given up: what is committed, and what has waited for too long."""
        now = anyio.current_time()
        ready = {
            queue: cursor
            for queue, (cursor, until) in self._leaving.items()
            if cursor.handed == cursor.committed or until <= now
        }
        held, keep = self._held(), self._to_keep()
        # What was never taken up can be given up at once.
        epochs = {q: e for q, e in self._owned().items() if q not in held and q not in keep}
        epochs |= {queue: cursor.epoch for queue, cursor in ready.items()}
        if not epochs:
            return
        for queue, cursor in ready.items():
            # From here on nothing of it is committed.
            del self._leaving[queue]
            if cursor.handed != cursor.committed:
                self._lost[queue] = cursor
        self._gone |= epochs
        try:
            await self._member.release(epochs)
        except RaftmqError:
            # The next round finds them owned, to be given up, and not held here.
            self._gone = {q: e for q, e in self._gone.items() if epochs.get(q) != e}
            raise
