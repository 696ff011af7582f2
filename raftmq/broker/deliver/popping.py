"""Consumers that pop: their requests become commands, and the machine's leases go to them.

    POP ──> Ask ──┐                                      ┌──> unsent leases ──> Popped
    SETTLE ──> Settle ──┼──> one record ──> apply ──> handed ──┘
    LEAVE ──> Leave ──┘                        └──> results ──> Settled

All commands to one data group within a step of the loop are one record. The machine, not this
module, keeps credit for messages that are not there yet: any later leader can serve it, in the
record that brings messages. The leader only has to know where the consumer can be reached, and
which leases are unsent. A consumer that asks for the rest of its credit needs no command.

The first request on a connection is *resumed*: all leases that the consumer holds in the machine
are unsent again, under their tokens. After a lost answer no lease has to run out first.

Invariants:
- A POP is answered once: with messages, empty when its wait is over, or with a refusal.
- A lease becomes unsent once a connection; a follower has no unsent leases.
- A lease that was handed out is sent, or stays unsent, or the consumer is gone.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil

import trio
from msgspec.structs import replace

from raftmq.broker.host import Host, Taken
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.answers import (
    LATER,
    Answer,
    Later,
    OpenRequest,
    elsewhere,
    number_of_another,
    refusal,
)
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.dispatcher import group_route
from raftmq.broker.serve.fetches import BYTES_MAX
from raftmq.broker.service import Service
from raftmq.broker.settings import Limits
from raftmq.broker.tickets import Callback, Shared, Ticket
from raftmq.broker.timers import Timer, Timers
from raftmq.broker.world import Worker
from raftmq.errors import Reason
from raftmq.log.record import Kind, Record
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop import calls
from raftmq.pop.leases import SLOT_BITS
from raftmq.pop.policy import INVISIBLE_MS_MIN, Order
from raftmq.results import Refused, Result
from raftmq.wire.codec import pack
from raftmq.wire.frame import FramePart
from raftmq.wire.messages import Done, ErrorReply, FrameKind
from raftmq.wire.popping import (
    RESET_QUEUES_MAX,
    SETTLE_ITEMS_MAX,
    Claim,
    Claimed,
    Leave,
    Pop,
    Popped,
    ResetGroup,
    Settle,
    Settled,
)

from .consumers import CONSUMERS_MAX, Consumer, Consumers, Key, OrderFlags
from .credit import has_credit, is_idle
from .hand_out import Outgoing, Part, answer, from_disk, from_memory, plan, wanted
from .in_flight import COUNT_SECONDS, InFlight, WaitingPop

COMMANDS_MAX = 1024
"""Commands of one record."""
SLACK_MS = 20
"""Milliseconds by which credit ends in the machine before its request is answered here: messages
handed out at the last moment still get into the answer. Both ends go by one clock."""
TICK_SECONDS_MIN = 0.005
"""The shortest sleep before a Tick: timers that are due together need only one."""
TICK_RETRY_SECONDS = 0.05
"""A Tick that was refused is proposed again after this time at the earliest."""

_TOO_SHORT = ErrorReply("bad_argument", f"a lease runs for {INVISIBLE_MS_MIN} ms at least")
_CROWDED = ErrorReply(
    Reason.TOO_LARGE.value,
    f"this connection has {CONSUMERS_MAX} consumers at this node already: close some, let fewer "
    "consumers take more messages each, or open another connection",
)
_OPENING = calls.Ask | calls.Claim | calls.ResetGroup


class Popping(Service):
    """The consumers of all data groups that this node leads."""

    def __init__(self, node: Host, *, timers: Timers, reader: Worker, limits: Limits) -> None:
        self._node = node
        self._timers = timers
        self._reader = reader
        self._limits = limits
        self._consumers = Consumers(self._is_idle)
        # Commands of this step, each with the ticket that waits for its result.
        self._said: dict[Group, list[tuple[calls.Call, Ticket | None]]] = {}
        self._opening: set[tuple[int, int]] = set()
        # Partition group → the machine's next timer, in ms, and the call that lets time pass then.
        self._armed: dict[int, tuple[int, Timer]] = {}
        self._in_flight = InFlight(node)
        self._is_looking = False
        # Resumed consumers that have leases in hand: answered once the step's records are indexed.
        self._met: dict[Consumer, None] = {}
        self.routes = {
            FrameKind.POP: group_route(Pop, self._group, self._pop),
            FrameKind.SETTLE: group_route(Settle, self._group, self._settle),
            FrameKind.LEAVE: group_route(Leave, self._group, self._leave),
            FrameKind.CLAIM: group_route(Claim, self._group, self._claim),
            FrameKind.RESET: group_route(ResetGroup, self._group, self._reset),
        }

    # Requests

    def _pop(self, request: Pop, group: Group, asked: OpenRequest) -> Answer:
        assert isinstance(group.machine, PartitionMachine)
        # Before this log has the consumer's filter, messages that do not match would be handed out.
        if group.machine.subscriptions.version < request.subscribed:
            message = f"partition group {group.number} does not know the filter yet"
            return ErrorReply("unavailable", message, group=group.number, retry_ms=20)
        if 0 < request.invisible_ms < INVISIBLE_MS_MIN:
            # Checked here and not by the machine: logs may hold such requests already.
            return _TOO_SHORT
        key = Key(request.partition_group, request.number, request.consumer)
        consumer, connection = self._consumers.get(key), asked.connection
        if consumer is None or consumer.connection is not connection or request.is_resumed:
            if not self._consumers.has_place(key, connection):
                return _CROWDED
            consumer = self._meet(key, connection)
        elif consumer.correlation is not None:
            # A consumer has one POP open: a newer one ends the wait of the one before.
            self._reply(consumer, Popped([], [], bool(consumer.unsent), *consumer.order))
        correlation, full = asked.correlation, None
        if self._node.quotas.is_on:
            request = self._within_rates(request, asked)
            if consumer.since is None or not has_credit(group, request):
                request, full = self._within_flight(consumer, request)
        consumer.correlation, consumer.held_ms = (correlation, request), asked.held_ms
        consumer.is_hurried = False
        wait_ms = min(request.wait_ms, self._limits.fetch_wait_ms_max)
        seconds = (wait_ms + SLACK_MS) / 1000
        hurry = partial(self._hurry, consumer, correlation)
        consumer.timer = self._timers.call_after(seconds, hurry)
        if consumer.since is not None and consumer.unsent:
            self._answer(consumer)
            if consumer.correlation is None or consumer.is_reading:
                return LATER
        if full is not None:
            self._wait_for_room(consumer, full)
            # A consumer that is met has to hear which leases it has, by an Ask for no more.
            if consumer.since is not None:
                return LATER
        # Credit that stands serves this request, so no command has to go through the log.
        elif consumer.since is not None and has_credit(group, request):
            return LATER
        return self._ask(group, consumer, wait_ms)

    def _ask(self, group: Group, consumer: Consumer, wait_ms: int) -> Later:
        """Ask the machine for what the consumer's POP wants."""
        assert consumer.correlation is not None
        correlation, request = consumer.correlation
        number, me, count = request.number, request.consumer, request.count
        ask = calls.Ask(number, me, count, wait_ms, request.invisible_ms, request.is_kept)
        if count > 0 and self._node.quotas.is_on:
            self._in_flight.note_ask(consumer.key, consumer.connection, correlation, count)
        ticket = Callback(
            partial(self._asked, group, consumer, correlation, request),
            partial(self._ask_failed, consumer, correlation),
        )
        return self._say(group, ask, ticket)

    def _within_rates(self, request: Pop, asked: OpenRequest) -> Pop:
        """The request as the quotas of rates leave it: credit beyond the client's wait, and
        messages that are not sent soon, would stay in its hand unseen."""
        attachment = self._node.catalog.consumer_groups.attachments[request.number]
        room = self._node.quotas.room(asked.connection, [attachment.topic_id << QUEUE_BITS])
        return replace(
            request,
            count=int(min(request.count, room.pop_messages)),
            wait_ms=max(request.wait_ms - asked.held_ms, 0),
            bytes_max=int(min(request.bytes_max, room.size)),
        )

    def _within_flight(self, consumer: Consumer, request: Pop) -> tuple[Pop, WaitingPop | None]:
        """The request as the quotas of messages in flight leave it; and how it waits, if they leave
        nothing of it."""
        if request.count <= 0:
            return request, None
        room = self._in_flight.room(consumer.key, consumer.connection)
        count = int(min(request.count, room.messages))
        if count:
            return replace(request, count=count), None
        assert room.subject is not None
        return replace(request, count=0), WaitingPop(
            request.count, trio.current_time(), room.subject
        )

    def _wait_for_room(self, consumer: Consumer, pop: WaitingPop) -> None:
        self._look_soon()
        self._in_flight.waiting.put(consumer.key, pop)

    def _look_soon(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._timers.call_after(COUNT_SECONDS, self._look_for_room)

    def _look_for_room(self) -> None:
        """Ask for those consumers that wait for which there is room now."""
        self._is_looking = False
        for key, pop in self._in_flight.waiting.look():
            consumer = self._consumers.get(key)
            if consumer is None or consumer.correlation is None:
                self._in_flight.waiting.take(key)
                continue
            correlation, request = consumer.correlation
            # Meanwhile the consumer group, or its topic, may be deleted.
            group = self._group(request)
            if isinstance(group, ErrorReply):
                self._in_flight.waiting.take(key)
                consumer.connection.refuse(consumer.end_wait(), group)
                continue
            request, full = self._within_flight(consumer, replace(request, count=pop.messages))
            # Its first Ask, for no messages, is not applied: the leases in its hand are not known.
            if full is not None or consumer.since is None:
                continue
            consumer.correlation = correlation, request
            held_ms = self._end_waiting(consumer)
            wait_ms = min(request.wait_ms, self._limits.fetch_wait_ms_max)
            self._ask(group, consumer, max(wait_ms - held_ms, 0))
        self.flush()
        if self._in_flight.waiting:
            self._look_soon()

    def _end_waiting(self, consumer: Consumer, *, keeps_place: bool = False) -> int:
        """The POP of a consumer waits for room no longer; for how many ms it did."""
        pop = self._in_flight.waiting.take(consumer.key, keeps_place=keeps_place)
        if pop is None:
            return 0
        seconds = trio.current_time() - pop.since
        self._node.quotas.note_slowed(pop.subject, seconds)
        consumer.held_ms += ceil(seconds * 1000)
        return ceil(seconds * 1000)

    def _settle(self, request: Settle, group: Group, asked: OpenRequest) -> Answer:
        if len(request.items) > SETTLE_ITEMS_MAX:
            message = f"{len(request.items)} items in one SETTLE; the limit is {SETTLE_ITEMS_MAX}"
            return ErrorReply(Reason.TOO_LARGE.value, message)
        steps = [
            calls.Step(x.action, x.token, x.base, x.bits, x.delay_ms, x.reason)
            for x in request.items
        ]
        command = calls.Settle(
            request.number, request.consumer, request.sequence, steps, request.by_handle
        )
        return self._say(group, command, asked.ticket(Settled.of))

    def _leave(self, request: Leave, group: Group, asked: OpenRequest) -> Answer:
        key = Key(request.partition_group, request.number, request.consumer)
        consumer = self._consumers.get(key)
        if request.is_idle:
            # No credit of the consumer stands, so the log need not hear that it leaves.
            ours = asked.connection
            # Meanwhile the consumer may be back, on another connection or with a new request.
            if consumer and consumer.connection is ours and consumer.correlation is None:
                self._consumers.forget(key)
            return Done()
        if consumer is not None and consumer.correlation is not None:
            self._reply(consumer, Popped([], [], bool(consumer.unsent), *consumer.order))
        self._consumers.forget(key)
        command = calls.Leave(request.number, request.consumer)
        return self._say(group, command, asked.ticket(lambda _: Done()))

    def _claim(self, request: Claim, group: Group, asked: OpenRequest) -> Answer:
        command = calls.Claim(request.number, request.key, request.claimant, request.ttl_ms)
        return self._say(group, command, asked.ticket(lambda value: Claimed(*value)))

    def _reset(self, request: ResetGroup, group: Group, asked: OpenRequest) -> Answer:
        queues, offsets = request.queues, request.offsets
        if not len(queues) == len(offsets) <= RESET_QUEUES_MAX:
            message = f"as many queues as offsets are needed, up to {RESET_QUEUES_MAX}"
            return ErrorReply(Reason.BAD_ARGUMENT.value, message)
        command = calls.ResetGroup(request.number, queues, offsets, request.request)

        def is_reset(value: object) -> Done | ErrorReply:
            return Done() if value is None else number_of_another(request.request)

        return self._say(group, command, asked.ticket(is_reset))

    def closed(self, connection: Connection) -> None:
        """The connection's consumers have no credit until they come back."""
        for key in self._consumers.of_connection(connection):
            self._consumers.forget(key)
            group = self._node.group(key.partition_group)
            # Else messages would be leased to the credit of a consumer that is gone.
            if group is not None and group.is_leader:
                self._say(group, calls.Leave(key.number, key.consumer), None)
        self.flush()

    # Calls of groups

    def flush(self) -> None:
        """Propose the commands of this step."""
        if not self._said:
            return
        said, self._said = self._said, {}
        # Each step opens again until the machine knows the attachment: a proposal may be refused.
        self._opening.clear()
        for group, all_of_it in said.items():
            for start in range(0, len(all_of_it), COMMANDS_MAX):
                part = all_of_it[start : start + COMMANDS_MAX]
                payload = encode_commands([command for command, _ in part])
                group.propose(Kind.COMMANDS, payload, Shared([ticket for _, ticket in part]))

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """Send the leases that the records handed out, and arm the timer."""
        machine = group.machine
        if not isinstance(machine, PartitionMachine):
            return
        handed = machine.pop_groups.take_handed()
        touched, self._met = self._met, {}
        # A replica that differs may hand out other messages than the group does.
        if not group.is_leader or group.differs:
            return
        for number, each in handed:
            consumer = self._consumers.get(Key(group.number, number, each.consumer))
            # Leases with earlier tokens were listed when the consumer was resumed.
            if consumer is not None and consumer.since is not None and each.token >= consumer.since:
                consumer.unsent.append(each)
                touched[consumer] = None
        for consumer in touched:
            self._answer(consumer)
        self._arm(group)

    def led(self, group: Group, is_leader: bool) -> None:
        """Let time pass, or refuse the consumers, which must go to the next leader."""
        if not isinstance(group.machine, PartitionMachine):
            return
        if is_leader:
            self._arm(group)
            return
        for consumer in self._consumers.of_group(group.number):
            if consumer.correlation is not None:
                consumer.connection.refuse(consumer.end_wait(), group.not_leader())
            self._consumers.forget(consumer.key)

    # Consumers

    def _group(self, request: Pop | Settle | Leave | Claim | ResetGroup) -> Group | ErrorReply:
        """The data group that a request is for."""
        group, number = self._node.group(request.partition_group), request.number
        groups = self._node.catalog.consumer_groups
        if group is None or not isinstance(group.machine, PartitionMachine):
            return elsewhere(request.partition_group)
        if not group.is_leader:
            return group.not_leader()
        # The client may have heard of the attachment from a node whose catalog is newer.
        if number > groups.number_last:
            message = f"attachment {number} is not known here yet"
            return ErrorReply("unavailable", message, group=group.number, retry_ms=20)
        if number not in groups.attachments:
            message = f"there is no attachment {number} of a consumer group: it was deleted"
            return ErrorReply(Reason.UNKNOWN_GROUP.value, message)
        return group

    def _meet(self, key: Key, connection: Connection) -> Consumer:
        """A consumer came, perhaps again and on another connection."""
        before = self._consumers.get(key)
        if before is not None and before.correlation is not None:
            self._reply(before, Popped([], []))
        # The connection on which it waited for room may be gone.
        self._in_flight.waiting.take(key)
        return self._consumers.meet(key, connection)

    def _is_idle(self, key: Key) -> bool:
        group = self._node.group(key.partition_group)
        return group is None or is_idle(group, key.number, key.consumer)

    def _asked(
        self,
        group: Group,
        consumer: Consumer,
        correlation: int,
        request: Pop,
        results: list[Result],
    ) -> None:
        """The request is applied; leases that the same record handed out follow in `applied`."""
        self._in_flight.drop_ask(consumer.key, correlation)
        if isinstance(results[0], Refused):
            self._ask_failed(consumer, correlation, refusal(results[0]))
            return
        machine = group.machine
        assert isinstance(machine, PartitionMachine)
        if consumer.since is None:
            # Leases up to here are listed now, later ones come by `applied`: each lease once.
            consumer.since = machine.applied + 1 << SLOT_BITS
            attached = machine.pop_groups.attached[request.number].group
            has_runs = attached.order is Order.KEY and attached.policy.run > 1
            consumer.order = OrderFlags(attached.order is Order.QUEUE, has_runs)
            consumer.unsent.extend(attached.held_by(consumer.key.consumer, group.now_ms()))
            if consumer.unsent:
                self._met[consumer] = None
        # Not yet: leases of the same record come by `applied`, which is next.
        if not request.wait_ms or consumer.is_hurried:
            self._timers.call_after(0, partial(self._hurry, consumer, correlation))

    def _ask_failed(self, consumer: Consumer, correlation: int, error: ErrorReply) -> None:
        """The request was refused, or its fate is unknown: leases wait for the next request."""
        self._in_flight.drop_ask(consumer.key, correlation)
        if consumer.correlation is not None and consumer.correlation[0] == correlation:
            consumer.connection.refuse(consumer.end_wait(), error)

    def _hurry(self, consumer: Consumer, correlation: int) -> None:
        """The wait is over: answer with the messages that are there, or with none."""
        if consumer.correlation is not None and consumer.correlation[0] == correlation:
            consumer.is_hurried = True
            self._answer(consumer)

    # Answers

    def _answer(self, consumer: Consumer) -> None:
        """Answer the POP that waits, if there is one, with messages or because its wait is over."""
        if consumer.correlation is None or consumer.is_reading:
            return
        # Before its first request is applied, nothing is known of its leases, and a consumer that
        # resumes must not take an empty answer for the end of them: `_asked` goes on.
        if consumer.since is None:
            return
        if consumer.connection.is_clogged:
            # The consumer does not read its answers: its leases stay unsent until its next
            # request, which is taken when there is room. The answer says whether more leases wait.
            if consumer.is_hurried or consumer.unsent:
                self._reply(consumer, Popped([], [], bool(consumer.unsent), *consumer.order))
            return
        group = self._node.group(consumer.key.partition_group)
        if group is None:
            return
        parts = plan(group, consumer.unsent, group.now_ms())
        extents = wanted(parts)
        # With a budget of 0 no batch would be read, and the leases would stay unsent.
        budget = max(
            1, min(consumer.correlation[1].bytes_max, self._limits.fetch_bytes_max, BYTES_MAX)
        )
        read = from_memory(group, extents, budget)
        if read or not extents:
            self._send(consumer, group, parts, read)
            return
        consumer.is_reading = True
        consumer.connection.expect(consumer.correlation[0], budget)
        self._reader.submit(
            partial(from_disk, group.store, extents, budget),
            partial(self._read_done, consumer, group, parts),
        )

    def _read_done(
        self,
        consumer: Consumer,
        group: Group,
        parts: list[Part],
        read: dict[int, Outgoing] | None,
        error: BaseException | None,
    ) -> None:
        consumer.is_reading = False
        if consumer.correlation is None:
            return
        if read is None:
            assert error is not None
            # The messages come again when their leases run out, or when the consumer resumes.
            for part in parts:
                consumer.unsent.remove(part.handed)
            consumer.connection.refuse(consumer.end_wait(), self._node.read_failed(error))
            return
        self._send(consumer, group, parts, read)

    def _send(
        self, consumer: Consumer, group: Group, parts: list[Part], read: dict[int, Outgoing]
    ) -> None:
        """Send the batches that were read; the rest stays unsent."""
        popped, body = answer(
            group, consumer.unsent, parts, read, group.now_ms(), order=consumer.order
        )
        if popped.leases or consumer.is_hurried:
            if self._node.quotas.is_on:
                self._node.quotas.charge(consumer.connection, _taken(popped, body))
            self._reply(consumer, popped, body)

    def _reply(self, consumer: Consumer, popped: Popped, body: Sequence[FramePart] = ()) -> None:
        consumer.is_hurried = False
        self._end_waiting(consumer, keeps_place=not popped.leases)
        if consumer.held_ms:
            popped = replace(popped, throttle_ms=consumer.held_ms)
        consumer.connection.reply(FrameKind.POP, consumer.end_wait(), pack(popped), body)

    # Commands

    def _say(self, group: Group, command: calls.Call, ticket: Ticket | None) -> Later:
        """Propose a command at the end of this step, with all others."""
        said = self._said.setdefault(group, [])
        number = command.number if isinstance(command, _OPENING) else 0
        opening = self._open(group, number) if number else None
        if opening is not None:
            said.append((opening, None))
        said.append((command, ticket))
        return LATER

    def _open(self, group: Group, number: int) -> calls.OpenGroup | None:
        """The command that must precede the first one for an attachment in the data group; None:
        the group knows the attachment, or this step tells the group already."""
        assert isinstance(group.machine, PartitionMachine)
        catalog = self._node.catalog
        attachment = catalog.consumer_groups.attachments[number]
        consumer_group = catalog.consumer_groups.groups[attachment.consumer_group]
        attached = group.machine.pop_groups.attached.get(number)
        if attached is not None and attached.version >= consumer_group.version:
            return None
        if (group.number, number) in self._opening:
            return None
        self._opening.add((group.number, number))
        queues, starts = [], []
        topic = catalog.topic_of(attachment.topic_id << QUEUE_BITS)
        for n, partition_group in enumerate(topic.groups if topic is not None else ()):
            queue = attachment.topic_id << QUEUE_BITS | n
            # A queue that the topic got after the group began is read from its first message.
            is_latest = attachment.is_latest and n < attachment.queues
            start = -1 if is_latest else group.index.earliest(queue) or 0
            if partition_group == group.number and start:
                queues.append(queue)
                starts.append(start)
        return calls.OpenGroup(
            number=number,
            topic=attachment.topic_id,
            consumer_group=consumer_group.name,
            version=consumer_group.version,
            mode=consumer_group.mode,
            policy=consumer_group.policy,
            queues=queues,
            starts=starts,
        )

    # Time

    def _arm(self, group: Group) -> None:
        """Arm the timer for the next work of the machine that only needs time to pass."""
        assert isinstance(group.machine, PartitionMachine)
        timer = group.machine.next_timer
        armed = self._armed.get(group.number)
        if timer is None or (armed is not None and armed[0] <= timer):
            return
        if armed is not None:
            # That call may be days away, and each shorter lease would leave one more behind.
            armed[1].cancel()
        seconds = max((timer - group.now_ms()) / 1000, TICK_SECONDS_MIN)
        call = self._timers.call_after(seconds, partial(self._let_pass, group))
        self._armed[group.number] = (timer, call)

    def forget(self, group: Group) -> None:
        """Drop the timer of a retired replica: another replica of the group has its own."""
        armed = self._armed.pop(group.number, None)
        if armed is not None:
            armed[1].cancel()

    def _let_pass(self, group: Group) -> None:
        """Propose that time passes, if no other record let it pass meanwhile."""
        del self._armed[group.number]
        if not group.is_leader or group.is_retired:
            return
        assert isinstance(group.machine, PartitionMachine)
        timer = group.machine.next_timer
        if timer is not None and timer <= group.now_ms():
            refused = partial(self._tick_refused, group)
            self._say(group, calls.Tick(), Callback(lambda _: None, refused))
            self.flush()
        else:
            self._arm(group)

    def _tick_refused(self, group: Group, error: ErrorReply) -> None:
        """Try again later: where no other record comes, nothing else would let time pass."""
        seconds = max(error.retry_ms / 1000, TICK_RETRY_SECONDS)
        self._timers.call_after(seconds, partial(self._arm_again, group))

    def _arm_again(self, group: Group) -> None:
        # A new leader arms its own timer; one that was elected again may have done so meanwhile.
        if group.is_leader and not group.is_retired:
            self._arm(group)


def _taken(popped: Popped, body: Sequence[FramePart]) -> list[Taken]:
    """The amounts in an answer; all its queues are of one topic."""
    if not popped.leases:
        return []
    messages = sum(int.from_bytes(lease.bits, "little").bit_count() for lease in popped.leases)
    return [Taken(popped.leases[0].queue, sum(map(len, body)), messages)]
