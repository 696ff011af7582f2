"""The pull consumer: it reads a topic by offset, and commits its offsets.

`read_ahead` reads ahead; the consumer hands out messages, and asks the leaders for the offsets to
begin at and for the committed ones (`offsets`).

The consumer reads all queues of the topic, the named ones, or the queues *assigned* to it as a
member of its group (`assignment`); an instance of a broadcast group is the one member of a group of
its own.

Commits are numbered in the order of the calls: a commit that arrives after a later one changes
nothing (`raftmq.machine.offsets`).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

import anyio
import anyio.lowlevel

from raftmq.client.admin.consumer_groups import require_mode
from raftmq.client.admin.subscriptions import subscribe
from raftmq.client.arguments import ByOffset, require, typed
from raftmq.client.message import Message, Messages
from raftmq.client.options import ConsumerSettings
from raftmq.client.recorders import ConsumerRecorder
from raftmq.client.routing.requests import after, seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.slices import Slice
from raftmq.client.supervisor import Supervisor, TaskScope
from raftmq.errors import RaftmqError, Reason, Rejected, Unavailable
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.offsets import CLAIM
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.pop.policy import Mode
from raftmq.wire.messages import EARLIEST, TopicView

from .assignment import AssignedQueues
from .cursors import count_old, cursors_at
from .membership import Member
from .offsets import Stamp, commit_offsets, committed_offsets, find_offsets
from .positions import Cursor
from .read_ahead import Fetcher
from .start import Exactly, start_of

_CHECKPOINT_MESSAGES = 64
"""`async for` lets other tasks run after this many messages."""


@typed()
class Consumer(ByOffset):
    """Reads queues of one topic. Made by `Client.consumer`; use it as `async with`.

    Messages of one queue come in order, each once, from whatever leader. Messages are fetched ahead
    of the application, up to `prefetch_bytes`.

    A queue has three positions: *fetched* ahead (internal), *handed* to the application
    (`position`, which `commit` commits), and *done*: the end of all messages handed out before the
    present message or batch (which `auto_commit` commits).
    """

    def __init__(
        self,
        topic: str,
        settings: ConsumerSettings,
        *,
        router: Router,
        supervisor: Supervisor,
        join: JoinGroup | None = None,
        recorder: ConsumerRecorder | None = None,
    ) -> None:
        self._settings = settings.validate()
        self._router = router
        self._supervisor = supervisor
        self._recorder = recorder
        self._tasks: TaskScope | None = None
        self._fetcher: Fetcher | None = None
        self._view: TopicView | None = None
        self._touched: list[Cursor] = []
        self._since_checkpoint = 0
        self._growing = False
        self._commit_error: RaftmqError | None = None
        self.topic = topic
        """The topic's name."""
        self.group = settings.group
        """The consumer group; None: no offsets are committed."""
        self._offsets_name = settings.group if join is None else join.offsets_name
        self._sender, self._sequence = router.draw_request(), 0
        self._assigned: AssignedQueues | None = None
        self._is_instance = join is not None and join.mode is Mode.BROADCAST
        self._use = settings.use(topic, is_instance=self._is_instance)
        # Of a member: number of queues that `start` holds for; the others are newer than its place.
        # The leader's number (`AssignedQueues.old_queue_count`) comes first.
        self._old_queue_count = 0
        if join is not None:
            self._assigned = AssignedQueues(self, Member(router, join), router)

    async def __aenter__(self) -> Self:
        """Subscribe if there is a filter, find the committed offsets or the start, and begin to
        fetch.

        A consumer is opened once. Cancelling leaves nothing behind but the subscription; a member
        leaves its group again, which takes up to a second, or else its session runs out.

        Raises:
            Rejected: `UNKNOWN_TOPIC`, or a queue that the topic does not have; `GROUP_MODE`: the
                group has another mode.
            Unavailable: a leader was not found in time.
            OutcomeUnknown: a leader was not found in time, and the group's filter, or members, may
                have changed.
            RaftmqError: this consumer was opened before.
        """
        if self._tasks is not None:
            raise RaftmqError("a consumer is used once: make another one by `consumer()`")
        subscribed, left = 0, seconds_left(self._router, None)
        if self.group is not None and self._assigned is None:
            await require_mode(self._router, self.group, Mode.PULL, left())
        if self.group is not None and self._settings.filter is not None:
            filter_ = self._settings.filter
            subscribed = await subscribe(self._router, self.topic, self.group, filter_, left())
        with after([self.group or ""] if subscribed else [], "the filter of group"):
            opening = f"to open {self.topic!r}"
            cursors = await self._router.within(left(), self._first_cursors(), opening)
            self._tasks = self._supervisor.task_scope(self._fail)
            self._fetcher = Fetcher(
                self._router,
                self._tasks,
                topic=self.topic,
                bytes_max=self._settings.prefetch_bytes,
                on_trimmed=self._settings.on_trimmed,
                consumer_group=self.group or "",
                subscribed=subscribed,
            )
            self._fetcher.add(cursors)
            self._router.pushed.follow(self._use, self._fetcher.obey)
            self._router.watch(self._follow_topic)
            if self._assigned is not None:
                await self._join(self._assigned, left())
        if self._settings.auto_commit is not None:
            self._tasks.start(self._auto_commit)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End. With `auto_commit`, commit the handed offsets, or the done ones if the body raised.

        Without it the end commits nothing.
        """
        if error is None:
            await self.aclose()
            return
        try:
            if isinstance(error, Exception) and self._settings.auto_commit is not None:
                await self._commit_done()
            if isinstance(error, Exception) and self._assigned is not None:
                await self._assigned.end(None)
        except RaftmqError as failed:
            error.add_note(f"while the consumer was closed: {failed}")
        finally:
            self._end()

    def __aiter__(self) -> Self:
        """Messages one by one, without an end: `break` when you have enough."""
        return self

    async def __anext__(self) -> Message:
        """The next message, however long it takes. Cancelling loses nothing.

        Raises:
            As `fetch`.
        """
        while True:
            self._since_checkpoint += 1
            if self._since_checkpoint >= _CHECKPOINT_MESSAGES:
                self._since_checkpoint = 0
                await anyio.lowlevel.checkpoint()
            fetcher = self._opened()
            self._finish_touched()
            slices = self._take(fetcher, 1)
            if slices:
                batch, start, _, queue_number = slices[0]
                self._touched.append(fetcher.cursors[queue_number])
                return Message(batch, start, queue_number, self.topic)
            await self._wait(fetcher, float("inf"))

    async def fetch(self, count: int = 500, *, wait: float = 1.0) -> Messages:
        """Up to `count` messages: those fetched, at once; else the first that come within `wait`.

        Cancelling loses nothing: the next call returns the messages.

        Args:
            count: the most to return, at least 1.
            wait: seconds; 0 returns messages fetched already.

        Returns:
            An empty `Messages` if the wait ran out.

        Raises:
            Rejected: `OFFSET_OUT_OF_RANGE`, the next messages of a queue were trimmed and
                `on_trimmed` is `"error"`: raised until `seek` moves the queue.
            UnreadableBatch: a batch cannot be decoded: raised until `seek` moves the queue; the
                error has the offsets. Reading the fields of a message from a batch that an old
                broker took may raise it, too; the next call goes on after the returned messages.
            Unavailable: no message is here and a queue could not be reached for the client's
                default timeout. Calling again goes on.
        """
        require(count > 0, "count must be positive")
        await anyio.lowlevel.checkpoint()
        deadline = anyio.current_time() + wait
        while True:
            fetcher = self._opened()
            self._finish_touched()
            slices = self._take(fetcher, count)
            if slices or anyio.current_time() >= deadline:
                self._touched += [fetcher.cursors[part.queue_number] for part in slices]
                return Messages(slices, self.topic)
            await self._wait(fetcher, deadline)

    async def commit(
        self, offsets: Mapping[int, int] | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit the consumer group's offsets: on the disks of a majority on return.

        Safe to repeat. Cancelling leaves some queues' offsets committed and others not.

        Args:
            offsets: queue → next offset to read; None: every queue's offset after the messages
                handed to the application, the present one included.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: the consumer has no group; an offset is outside of its queue; `FENCED`: queues
                were assigned to others before messages handed out of them were committed, or are
                named and not owned. Others get those messages; the owned queues are committed.
            Unavailable, OutcomeUnknown: the time ran out; a later commit overwrites it.
        """
        self._opened(check=False)
        if offsets is None:
            wanted = {cursor: cursor.handed for cursor in self._owned()}
        elif self._assigned is None:
            wanted = {self._cursor(queue): offset for queue, offset in offsets.items()}
        else:
            owned = {cursor.queue: cursor for cursor in self._owned()}
            wanted = {owned[queue]: offset for queue, offset in offsets.items() if queue in owned}
        lost = set(offsets or ()).difference(cursor.queue for cursor in wanted)
        for cursor, offset in wanted.items():
            # Else the next automatic commit would set this offset back.
            cursor.done = max(cursor.done, min(offset, cursor.handed))
        lost |= {cursor.queue for cursor in await self._commit(wanted, timeout)}
        if self._assigned is not None:
            self._assigned.poke()
            lost |= set(self._assigned.take_lost())
        if lost:
            message = (
                f"queues {sorted(lost)} no longer belong to this consumer: messages that it took "
                "from them and did not commit go to others; the other queues are committed"
            )
            raise Rejected(Reason.FENCED, message)

    async def seek(
        self,
        *,
        queue: int | None = None,
        offset: int | None = None,
        time: datetime | None = None,
        to: Literal["earliest", "latest"] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Go on from elsewhere: exactly one of `offset`, `time` and `to`.

        Messages fetched ahead are dropped. Nothing is committed. Cancelling changes nothing.

        Args:
            queue: the queue to move; None: all queues that this consumer reads.
            offset: the next message to read.
            time: go to the first message stored then or later; it needs a time zone.
            to: `"earliest"` or `"latest"`.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: the arguments contradict each other, or the queue is not read here.
            Unavailable: the leader was not found in time.
        """
        fetcher = self._opened(check=False)
        given = [value for value in (offset, time, to) if value is not None]
        require(len(given) == 1, "seek needs exactly one of offset=, time= and to=")
        cursors = list(fetcher.cursors.values()) if queue is None else [self._cursor(queue)]
        where = start_of(given[0])
        if isinstance(where, Exactly):
            found = dict.fromkeys((cursor.queue_number for cursor in cursors), where.offset)
        else:
            groups = {cursor.queue_number: cursor.group for cursor in cursors}
            replies = await find_offsets(self._router, groups, where, timeout)
            found = {number: reply.offset for number, reply in replies.items()}
        if self._recorder is not None:
            self._recorder.moved()
        for cursor in cursors:
            fetcher.move(cursor, found[cursor.queue_number])

    @property
    def position(self) -> dict[int, int]:
        """Queue → the offset after the last message that was handed to the application."""
        fetcher = self._opened(check=False)
        return {cursor.queue: cursor.handed for cursor in fetcher.cursors.values()}

    @property
    def assignment(self) -> tuple[int, ...]:
        """The queues read now; assigned queues change as members come and go."""
        fetcher = self._opened(check=False)
        return tuple(sorted(cursor.queue for cursor in fetcher.cursors.values()))

    @property
    def epochs(self) -> dict[int, int]:
        """Queue → the epoch under which it is owned, for assigned queues, also those being given
        up. It grows with each owner: a fencing token for the application's writes elsewhere."""
        self._opened(check=False)
        return {cursor.queue: cursor.epoch for cursor in self._owned() if cursor.epoch}

    async def committed(self, *, timeout: float | None = None) -> dict[int, int]:
        """Queue → committed offset of this group; queues without one are left out. Linearizable.

        Raises:
            Unavailable: a leader was not found in time.
        """
        fetcher = self._opened(check=False)
        groups = {cursor.queue_number: cursor.group for cursor in fetcher.cursors.values()}
        found = await committed_offsets(self._router, groups, self._name(), timeout)
        return {number & QUEUE_MASK: offset for number, offset in found.items()}

    async def aclose(self, *, timeout: float | None = None) -> None:
        """End as if the body had not raised. A second call does nothing."""
        if self._tasks is None or self._tasks.is_closed:
            return
        left = seconds_left(self._router, timeout)
        try:
            if self._settings.auto_commit is not None:
                self._opened(check=False)
                # A tenth of the time is left for leaving the group.
                await self._commit({c: c.handed for c in self._owned()}, left() * 0.9)
            if self._assigned is not None:
                await self._assigned.end(left())
        finally:
            self._end()

    # -- inside ----------------------------------------------------------------------------------

    async def _first_cursors(self) -> list[Cursor]:
        is_member = self._assigned is not None
        queues, router = self._settings.queues, self._router
        # A stale view would lack queues, later read from their beginning whatever `start` says.
        is_fresh = is_member or self._settings.start not in (None, "earliest")
        view = await (
            router.topic(self.topic, is_fresh=True) if is_fresh else router.look_up(self.topic)
        )
        if queues and max(queues) >= len(view.groups):
            # The asked node may not know new queues yet.
            view = await router.topic(self.topic, is_fresh=True)
        self._view = view
        if is_member:
            is_new = not self._is_instance or self._settings.start == "earliest"
            name = None if is_new else self._name()
            self._old_queue_count = await count_old(router, view, self.group, name)
            return []
        queues = tuple(range(len(view.groups))) if queues is None else queues
        return await self._cursors_at(view, queues, start_of(self._settings.start))

    async def _cursors_at(
        self, view: TopicView, queues: tuple[int, ...], start: "int | Exactly"
    ) -> list[Cursor]:
        name = None if self.group is None else self._name()
        is_owner = self._assigned is not None
        return await cursors_at(self._router, view, queues, start, name=name, is_owner=is_owner)

    async def _join(self, assigned: AssignedQueues, timeout: float) -> None:
        assert self._tasks is not None
        assert self._fetcher is not None
        try:
            await assigned.begin(self._fetcher, self._tasks, timeout)
        except BaseException:
            self._end()
            raise

    @property
    def commits_by_itself(self) -> bool:
        """For `AssignedQueues`: true with `auto_commit`."""
        return self._settings.auto_commit is not None

    async def groups_of(self, queues: Iterable[int]) -> dict[int, int]:
        """For `AssignedQueues`: queue within the topic → its partition group."""
        view = self._view
        if view is None or max(queues) >= len(view.groups):
            self._view = view = await self._router.topic(self.topic, is_fresh=True)
        return dict(enumerate(view.groups))

    async def take_up(self, group: int, epochs: Mapping[int, int]) -> list[Cursor]:
        """For `AssignedQueues`: claim queues, and find the offsets to read on from."""
        view = self._view
        assert view is not None
        numbers = {view.id << QUEUE_BITS | queue: epoch for queue, epoch in epochs.items()}
        fenced = await self._commit_at(group, dict.fromkeys(numbers, CLAIM), numbers)
        owned = tuple(number & QUEUE_MASK for number in numbers if number not in fenced)
        assert self._assigned is not None
        told = self._assigned.old_queue_count
        old_queue_count = self._old_queue_count if told is None else told
        old = tuple(queue for queue in owned if queue < old_queue_count)
        new = tuple(queue for queue in owned if queue >= old_queue_count)
        cursors = await self._cursors_at(view, old, start_of(self._settings.start))
        # EARLIEST, whatever `start` is: a new queue has no message that is too old.
        cursors += await self._cursors_at(view, new, EARLIEST)
        for cursor in cursors:
            cursor.epoch = numbers[cursor.queue_number]
        # Commit the start of queues without an offset, so that all later owners begin there.
        fresh = {cursor: cursor.fetched for cursor in cursors if cursor.committed is None}
        lost = await self._commit(fresh, None)
        return [cursor for cursor in cursors if cursor not in lost]

    async def commit_done(self, cursors: list[Cursor]) -> None:
        """For `AssignedQueues`: commit the done offsets."""
        await self._commit({cursor: cursor.done for cursor in cursors}, None)

    def _take(self, fetcher: Fetcher, count: int) -> list[Slice]:
        """The messages that may be handed out now; none while the lease may have run out."""
        is_held = self._assigned is not None and not self._assigned.is_leased
        slices = [] if is_held else fetcher.take(count)
        if slices and self._recorder is not None:
            self._recorder.read(slices)
        return slices

    def _owned(self) -> list[Cursor]:
        """Cursors of all queues whose offsets this consumer may commit."""
        fetcher, assigned = self._fetcher, self._assigned
        reading = list(fetcher.cursors.values()) if fetcher is not None else []
        return reading + (assigned.leaving if assigned is not None else [])

    async def _wait(self, fetcher: Fetcher, deadline: float) -> None:
        """Wait for news until `deadline`; raise if a leader has been lost for too long."""
        lost = self._lost_since(fetcher)
        seconds = self._router.seconds_max
        until = deadline if lost is None else min(deadline, lost + seconds)
        with anyio.move_on_after(until - anyio.current_time()):
            await fetcher.wait_news()
            return
        lost = self._lost_since(fetcher)
        if lost is not None and anyio.current_time() >= lost + seconds:
            fetcher.forgive()
            if self._assigned is not None:
                self._assigned.forgive()
            raise Unavailable(
                f"a leader of topic {self.topic!r}, or the node that assigns its queues, has not "
                f"been found for {seconds:g} s: {self._router.last_error}"
            )

    def _lost_since(self, fetcher: Fetcher) -> float | None:
        """Since when a leader is looked for, or the lease may have run out."""
        silent = self._assigned.silent_since if self._assigned is not None else None
        since = [at for at in (fetcher.lost_since(), silent) if at is not None]
        return min(since, default=None)

    def _finish_touched(self) -> None:
        """The application came back: it is done with the messages handed to it."""
        for cursor in self._touched:
            cursor.done = cursor.handed
        if self._touched and self._assigned is not None and self._assigned.leaving:
            self._assigned.poke()
        self._touched.clear()

    async def _auto_commit(self) -> None:
        assert self._settings.auto_commit is not None
        # Offsets with a lease are renewed long before it runs out, even if nothing is read.
        renewal, renewed = self._settings.kept_ms / 4000, anyio.current_time()
        while True:
            await anyio.sleep(self._settings.auto_commit)
            is_renewal = 0 < renewal <= anyio.current_time() - renewed
            renewed = anyio.current_time() if is_renewal else renewed
            try:
                await self._commit_done(is_renewal=is_renewal)
            except Rejected as error:
                self._commit_error = error
            except RaftmqError as error:
                # The next round commits more; calls that need a leader raise the error.
                self._router.last_error = str(error)

    async def _commit_done(self, *, is_renewal: bool = False) -> None:
        await self._commit({c: c.done for c in self._owned()}, None, is_renewal=is_renewal)

    async def _commit(
        self, wanted: dict[Cursor, int], timeout: float | None, *, is_renewal: bool = False
    ) -> list[Cursor]:
        """Commit offsets that changed, or all; returns the fenced cursors, which are lost."""
        by_partition: dict[int, dict[Cursor, int]] = {}
        for cursor, offset in wanted.items():
            if cursor.committed != offset or is_renewal:
                by_partition.setdefault(cursor.group, {})[cursor] = offset
        # One number for all, taken before the first await: the calls' order, however they arrive.
        self._sequence = sequence = self._sequence + 1
        lost, left = list[Cursor](), seconds_left(self._router, timeout)
        done: list[int] = []
        for partition_group, part in by_partition.items():
            epochs = {cursor.queue_number: cursor.epoch for cursor in part if cursor.epoch}
            offsets = {cursor.queue_number: offset for cursor, offset in part.items()}
            for cursor in part:
                cursor.commit_sent(sequence)
            with after(done, "the commit of queues"):
                fenced = await self._commit_at(partition_group, offsets, epochs, sequence, left())
            done += [cursor.queue for cursor in part]
            for cursor, offset in part.items():
                if cursor.queue_number in fenced:
                    lost.append(cursor)
                else:
                    cursor.commit_answered(sequence, offset)
        if lost and self._assigned is not None:
            self._assigned.lose(lost)
        return lost

    async def _commit_at(
        self,
        partition_group: int,
        offsets: dict[int, int],
        epochs: Mapping[int, int],
        sequence: int = 0,
        timeout: float | None = None,
    ) -> list[int]:
        stamp = Stamp(epochs, sequence, self._settings.kept_ms, sender=self._sender)
        return await commit_offsets(
            self._router, partition_group, self._name(), offsets, timeout, stamp=stamp
        )

    def _follow_topic(self) -> None:
        """The topic may have got more queues; all of them are read unless some were named."""
        view = self._router.topics.get(self.topic)
        if view is None or self._view is None or view.id != self._view.id:
            return
        is_grown = len(view.groups) > len(self._view.groups) and self._assigned is None
        if is_grown and self._settings.queues is None and not self._growing and self._tasks:
            self._growing = True
            self._tasks.start(self._add_queues)

    async def _add_queues(self) -> None:
        assert self._view is not None
        assert self._fetcher is not None
        view = self._router.topics.get(self.topic, self._view)
        added = tuple(range(len(self._view.groups), len(view.groups)))
        try:
            # EARLIEST, whatever `start` is: a new queue has no message that is too old.
            self._fetcher.add(await self._cursors_at(view, added, EARLIEST))
            self._view = view
        except RaftmqError as error:
            # The next refresh of the routing table tries again.
            self._router.last_error = str(error)
        finally:
            self._growing = False

    def _cursor(self, queue: int) -> Cursor:
        assert self._view is not None
        assert self._fetcher is not None
        cursor = self._fetcher.cursors.get(self._view.id << QUEUE_BITS | queue)
        if cursor is None:
            # An assigned queue may have been here a moment ago.
            reason = Reason.BAD_ARGUMENT if self._assigned is None else Reason.FENCED
            raise Rejected(reason, f"queue {queue} is not read by this consumer")
        return cursor

    def _name(self) -> str:
        """The name under which offsets are committed."""
        if self._offsets_name is None:
            message = "this consumer has no group: give group= to remember offsets"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        return self._offsets_name

    def _opened(self, *, check: bool = True) -> Fetcher:
        if self._tasks is None or self._fetcher is None:
            raise RaftmqError("the consumer is not open: enter it by `async with`, or `with`")
        self._tasks.check()
        if check:
            error, self._commit_error = self._commit_error, None
            if error is not None:
                raise error
            self._fetcher.check()
            if self._assigned is not None:
                self._assigned.check()
        return self._fetcher

    def _fail(self, _: RaftmqError) -> None:
        """The client failed inside: waiting calls end with the error."""
        if self._fetcher is not None:
            self._fetcher.tell()

    def _end(self) -> None:
        if self._tasks is not None and not self._tasks.is_closed:
            self._tasks.cancel()
            self._router.unwatch(self._follow_topic)
            if self._fetcher is not None:
                self._router.pushed.unfollow(self._use, self._fetcher.obey)
        if self._fetcher is not None:
            self._fetcher.close()
