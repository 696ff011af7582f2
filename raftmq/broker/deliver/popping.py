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
- A lease that was handed out is sent, or stays unsent, or is over, or the consumer is gone.
- An empty answer does not end the list of a resumed consumer's leases before the list is known.
- An answer has only messages that the consumer holds in the machine, with the lease's deadline.
"""

from collections.abc import Sequence
from functools import partial

import trio
from msgspec.structs import replace

from raftmq.broker.host import Host, Taken
from raftmq.broker.quotas.pace import Pace
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.answers import (
    LATER,
    Answer,
    Later,
    OpenRequest,
    number_of_another,
    refusal,
    unknown_attachment,
)
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.dispatcher import data_group, group_route
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

from .consumers import CONSUMERS_MAX, Consumer, Consumers, Key, OpenPop, OrderFlags
from .credit import has_credit, is_idle, is_unfed
from .hand_out import Outgoing, Part, answer, from_disk, from_memory, plan, renewed, wanted
from .in_flight import InFlight
from .room_wait import RoomWait
from .wide_topics import opening_of, within_width

COMMANDS_MAX = 1024
"""Commands of one record."""
OPENING_QUEUES_MAX = 65_536
"""Queues of the topics on which groups begin by commands that are under way, and one topic more;
further groups have to wait: each node looks at all these queues in one step."""
RESET_WORK = 20
"""Work of a reset for each queue, about 8 us, in the unit of `quotas.pace.WORK_MAX`."""
CLOSED_MAX = 1024
"""Consumers of a closed connection that lose their credit in one turn of the loop."""
SLACK_MS = 20
"""Milliseconds by which credit ends in the machine before its request is answered here: messages
handed out at the last moment still get into the answer. Both ends go by one clock."""
FED_WAIT_MS = 500
"""Milliseconds for which a request that does not wait waits nevertheless, where messages may be
there that the leader has not fed yet."""
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
        self._data_group = data_group(node)
        self._timers = timers
        self._reader = reader
        self._limits = limits
        self._consumers = Consumers(self._is_idle)
        # Commands of this step, each with the ticket that waits for its result.
        self._said: dict[Group, list[tuple[calls.Call, Ticket | None]]] = {}
        self._opening: set[tuple[int, int]] = set()
        # Consumers whose credit ends with the record of this step.
        self._momentary: set[Key] = set()
        # Queues of the topics on which groups begin by commands that are under way.
        self._opening_queues = 0
        # Partition group → the machine's next timer, in ms, and the call that lets time pass then.
        self._armed: dict[int, tuple[int, Timer]] = {}
        self._pace = Pace(node)
        self._in_flight = InFlight(node, self._consumers)
        self._room_wait = RoomWait(
            node,
            timers,
            self._in_flight,
            self._consumers,
            find=self._group,
            ask=self._ask,
            flush=self.flush,
        )
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
        elif consumer.open_pop is not None:
            # A consumer has one POP open: a newer one ends the wait of the one before.
            self._reply(consumer, consumer.nothing())
        correlation, waiting = asked.correlation, None
        request = within_width(self._node.catalog, request)
        is_momentary = request.count > 0 and not request.wait_ms
        if is_momentary and is_unfed(group, self._node.catalog, request.number):
            request = replace(request, wait_ms=FED_WAIT_MS)
        wanted = request.count
        if self._node.quotas.is_on:
            request = self._within_rates(request, asked)
            wanted = request.count
            if consumer.since is None or not has_credit(group, request):
                request, waiting = self._room_wait.within(consumer, request)
        consumer.open_pop = OpenPop(correlation, request, wanted, trio.current_time())
        consumer.throttle_ms = asked.throttle_ms
        consumer.is_hurried = False
        wait_ms = min(request.wait_ms, self._limits.fetch_wait_ms_max)
        seconds = (wait_ms + SLACK_MS) / 1000
        hurry = partial(self._hurry, consumer, correlation)
        consumer.timer = self._timers.call_after(seconds, hurry)
        if consumer.since is not None and consumer.unsent:
            self._answer(consumer)
            if consumer.open_pop is None or consumer.is_reading:
                return LATER
        if waiting is not None:
            self._room_wait.begin(consumer, waiting)
            # A consumer that is met has to hear which leases it has, by an Ask for no more.
            if consumer.since is not None:
                return LATER
        # Credit that stands serves this request, so no command has to go through the log.
        elif consumer.since is not None and has_credit(group, request):
            return LATER
        return self._ask(group, consumer)

    def _ask(self, group: Group, consumer: Consumer) -> Later:
        """Ask the machine for what the consumer's POP wants, for the rest of its wait."""
        assert consumer.open_pop is not None
        correlation, request, _, came_at = consumer.open_pop
        waited_ms = int((trio.current_time() - came_at) * 1000)
        wait_ms = max(min(request.wait_ms, self._limits.fetch_wait_ms_max) - waited_ms, 0)
        number, me, count = request.number, request.consumer, request.count
        if not (count and wait_ms):
            self._momentary.add(consumer.key)
        elif consumer.key in self._momentary:
            # In one record with that request this one's credit would end as well.
            self.flush()
        ask = calls.Ask(number, me, count, wait_ms, request.invisible_ms, request.is_kept)
        ticket: Ticket = Callback(
            partial(self._asked, group, consumer, correlation, request),
            partial(self._ask_failed, consumer, correlation),
        )
        if count > 0 and self._node.quotas.is_on:
            connection = consumer.connection
            ticket = self._in_flight.note_ask(consumer.key, connection, count, ticket)
        return self._say(group, ask, ticket)

    def _within_rates(self, request: Pop, asked: OpenRequest) -> Pop:
        """The request as the quotas of rates leave it: credit beyond the client's wait, and
        messages that are not sent soon, would stay in its hand unseen."""
        attachment = self._node.catalog.consumer_groups.attachments[request.number]
        room = self._node.quotas.room(asked.connection, [attachment.topic_id << QUEUE_BITS])
        return replace(
            request,
            count=int(min(request.count, room.pop_messages)),
            wait_ms=max(request.wait_ms - asked.throttle_ms, 0),
            bytes_max=int(min(request.bytes_max, room.size)),
        )

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
        # It comes late, on a connection that the consumer has given up: the consumer is back.
        if consumer is not None and consumer.connection is not asked.connection:
            return Done()
        if request.is_idle:
            # No credit of the consumer stands, so the log need not hear that it leaves. Meanwhile
            # the consumer may be back with a new request.
            if consumer is not None and consumer.open_pop is None:
                self._consumers.forget(key)
            return Done()
        if consumer is not None and consumer.open_pop is not None:
            self._reply(consumer, consumer.nothing())
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
        if len(set(queues)) < len(queues):
            return ErrorReply(Reason.BAD_ARGUMENT.value, "a reset names each queue once")
        command = calls.ResetGroup(request.number, queues, offsets, request.request)

        def is_reset(value: object) -> Done | ErrorReply:
            return Done() if value is None else number_of_another(request.request)

        ticket = asked.ticket(is_reset)
        propose = partial(self._say_reset, group, command, ticket)
        return self._pace.propose(asked, lambda: RESET_WORK * len(queues), propose)

    def _say_reset(self, group: Group, command: calls.ResetGroup, ticket: Ticket) -> Answer:
        if not group.is_leader or group.is_retired:
            return group.not_leader()
        # Meanwhile the consumer group, or its topic, may be deleted.
        groups, number = self._node.catalog.consumer_groups, command.number
        if (unknown := unknown_attachment(groups, number, group=group.number)) is not None:
            return unknown
        self._say(group, command, ticket)
        # It may have waited for its turn, outside of a step.
        self.flush()
        return LATER

    def closed(self, connection: Connection) -> None:
        """The connection's consumers have no credit until they come back."""
        keys = self._consumers.of_connection(connection)
        if len(keys) > CLOSED_MAX:
            self._timers.call_after(0, partial(self.closed, connection))
        for key in keys[:CLOSED_MAX]:
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
        self._momentary.clear()
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
        if group.became_current(records):
            self._in_flight.forget_counts()
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
            if consumer.open_pop is not None:
                consumer.connection.refuse(consumer.end_wait(), group.not_leader())
            self._consumers.forget(consumer.key)

    # Consumers

    def _group(self, request: Pop | Settle | Leave | Claim | ResetGroup) -> Group | ErrorReply:
        """The data group that a request is for."""
        groups, number = self._node.catalog.consumer_groups, request.number
        group = self._data_group(request)
        if isinstance(group, ErrorReply):
            return group
        if not group.is_leader:
            return group.not_leader()
        assert isinstance(group.machine, PartitionMachine)
        is_new = number not in group.machine.pop_groups.attached
        if is_new and self._opening_queues > OPENING_QUEUES_MAX:
            return ErrorReply("busy", "other groups begin here", group=group.number, retry_ms=20)
        return unknown_attachment(groups, number, group=group.number) or group

    def _meet(self, key: Key, connection: Connection) -> Consumer:
        """A consumer came, perhaps again and on another connection."""
        before = self._consumers.get(key)
        if before is not None and before.open_pop is not None:
            self._reply(before, before.nothing())
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
        if consumer.open_pop is not None and consumer.open_pop.correlation == correlation:
            consumer.connection.refuse(consumer.end_wait(), error)

    def _hurry(self, consumer: Consumer, correlation: int) -> None:
        """The wait is over: answer with the messages that are there, or with none."""
        if consumer.open_pop is not None and consumer.open_pop.correlation == correlation:
            consumer.is_hurried = True
            self._answer(consumer)

    # Answers

    def _answer(self, consumer: Consumer) -> None:
        """Answer the POP that waits, if there is one, with messages or because its wait is over."""
        if consumer.open_pop is None or consumer.is_reading:
            return
        # Before its first request is applied, nothing is known of its leases, and a consumer that
        # resumes must not take an empty answer for the end of them: `_asked` goes on.
        if consumer.since is None:
            return
        if consumer.connection.is_clogged:
            # The consumer does not read its answers: its leases stay unsent until its next
            # request, which is taken when there is room. The answer says whether more leases wait.
            if consumer.is_hurried or consumer.unsent:
                self._reply(consumer, consumer.nothing())
            return
        group = self._node.group(consumer.key.partition_group)
        if group is None:
            return
        parts = plan(group, consumer.key.number, consumer.unsent, group.now_ms())
        extents = wanted(parts)
        # With a budget of 0 no batch would be read, and the leases would stay unsent.
        budget = max(
            1, min(consumer.open_pop.request.bytes_max, self._limits.fetch_bytes_max, BYTES_MAX)
        )
        read = from_memory(group, extents, budget)
        if read or not extents:
            self._send(consumer, group, parts, read)
            return
        consumer.is_reading = True
        consumer.connection.expect(consumer.open_pop.correlation, budget)
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
        if consumer.open_pop is None:
            return
        if read is None:
            assert error is not None
            # The messages come again when their leases run out, or when the consumer resumes.
            for part in parts:
                consumer.unsent.remove(part.handed)
            consumer.connection.refuse(consumer.end_wait(), self._node.read_failed(error))
            return
        number, unsent = consumer.key.number, consumer.unsent
        parts = renewed(group, number, unsent, parts, group.now_ms())
        self._send(consumer, group, parts, read)
        if consumer.open_pop is not None and not consumer.is_hurried:
            # A newer POP came while these batches were read, and waited for them. Their leases have
            # ended meanwhile, so it waits for messages now.
            self._room_wait.ask_again(consumer)
            self.flush()

    def _send(
        self, consumer: Consumer, group: Group, parts: list[Part], read: dict[int, Outgoing]
    ) -> None:
        """Send the batches that were read; the rest stays unsent."""
        number, unsent, now = consumer.key.number, consumer.unsent, group.now_ms()
        popped, body = answer(group, number, unsent, parts, read, now, order=consumer.order)
        if popped.leases or consumer.is_hurried:
            if self._node.quotas.is_on:
                self._node.quotas.charge(consumer.connection, _taken(popped, body))
            self._reply(consumer, popped, body)

    def _reply(self, consumer: Consumer, popped: Popped, body: Sequence[FramePart] = ()) -> None:
        consumer.is_hurried = False
        self._room_wait.end(consumer, keeps_place=not popped.leases)
        if consumer.throttle_ms:
            popped = replace(popped, throttle_ms=consumer.throttle_ms)
        consumer.connection.reply(FrameKind.POP, consumer.end_wait(), pack(popped), body)

    # Commands

    def _say(self, group: Group, command: calls.Call, ticket: Ticket | None) -> Later:
        """Propose a command at the end of this step, with all others."""
        said = self._said.setdefault(group, [])
        number = command.number if isinstance(command, _OPENING) else 0
        opening = self._open(group, number) if number else None
        if opening is not None:
            said.append((opening, self._count_opening(opening)))
        said.append((command, ticket))
        return LATER

    def _open(self, group: Group, number: int) -> calls.OpenGroup | None:
        """The command that must precede the first one for an attachment in the data group; None:
        the group knows the attachment, or this step tells the group already."""
        if (group.number, number) in self._opening:
            return None
        command = opening_of(group, self._node.catalog, number)
        if command is not None:
            self._opening.add((group.number, number))
        return command

    def _count_opening(self, opening: calls.OpenGroup) -> Ticket:
        """Count the queues of a topic on which a group begins, until the ticket is done."""
        topic = self._node.catalog.topic_of(opening.topic << QUEUE_BITS)
        queues = 0 if topic is None else len(topic.groups)
        self._opening_queues += queues

        def end(_: object) -> None:
            self._opening_queues -= queues

        return Callback(end, end)

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
