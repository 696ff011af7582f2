"""Requests of operators about consumer groups that pop: their backlogs and dead letters."""

from heapq import nsmallest

from raftmq.access.rules import Resource
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.errors import Reason
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.pop_groups import PopGroups
from raftmq.pop import calls
from raftmq.pop.groups import PopGroup
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.popping import (
    SETTLE_ITEMS_MAX,
    BacklogView,
    ChangeDead,
    DeadChanged,
    DeadView,
    FindBacklogs,
    FindDead,
    FoundBacklogs,
    FoundDead,
)

from .answers import Answer, OpenRequest, number_of_another
from .dispatcher import data_group, group_route
from .pages import Sees

PAGE_MAX = 5000
"""Entries of one answer: about 60 bytes each."""
DEAD_PAGE_BYTES = 256 * 1024
"""Bytes of dead letters in one answer, and one letter more."""


class Backlogs(Service):
    """The handlers of these requests."""

    def __init__(self, node: Host) -> None:
        self._node = node
        of = data_group(node)
        self.routes = {
            FrameKind.BACKLOGS: group_route(FindBacklogs, of, self._find),
            FrameKind.DEAD: group_route(FindDead, of, self._find_dead),
            FrameKind.CHANGE_DEAD: group_route(ChangeDead, of, self._change_dead),
        }

    def _find(self, request: FindBacklogs, group: Group, asked: OpenRequest) -> Answer:
        def page() -> Answer:
            assert isinstance(group.machine, PartitionMachine)
            sees = self._node.gate.sees(asked.connection, Resource.GROUP)
            return backlogs_page(group.machine, request, sees)

        return asked.read(group, page)

    def _find_dead(self, request: FindDead, group: Group, asked: OpenRequest) -> Answer:
        def page() -> Answer:
            assert isinstance(group.machine, PartitionMachine)
            attached = group.machine.pop_groups.attached.get(request.number)
            return FoundDead([]) if attached is None else dead_page(attached.group, request)

        return asked.read(group, page)

    def _change_dead(self, request: ChangeDead, group: Group, asked: OpenRequest) -> Answer:
        if len(request.letters) > SETTLE_ITEMS_MAX:
            message = f"{len(request.letters)} letters at once; the limit is {SETTLE_ITEMS_MAX}"
            return ErrorReply(Reason.TOO_LARGE.value, message)
        letters, bases, bits = request.letters, request.bases, request.bits
        command = calls.ChangeDead(
            request.number, letters, request.is_purge, bases, bits, request.request
        )

        def changed(value: object) -> DeadChanged | ErrorReply:
            if not isinstance(value, int):
                return number_of_another(request.request)
            return DeadChanged(value)

        return asked.propose(group, [command], changed)


def backlogs_page(
    machine: PartitionMachine, request: FindBacklogs, sees: Sees = lambda _: True
) -> FoundBacklogs:
    """A page of the backlogs of a data group's consumer groups, as far as `sees` shows them."""
    after = (request.after_number, request.after_queue)
    keys = [key for key in _queues(machine.pop_groups, request.number, sees) if key > after]
    page = nsmallest(PAGE_MAX, keys)
    found = [
        _view(machine.pop_groups.attached[number].group, number, queue, machine.ends.get(queue, 0))
        for number, queue in page
    ]
    return FoundBacklogs(found, len(page) < len(keys))


def dead_page(group: PopGroup, request: FindDead) -> FoundDead:
    """A page of a group's dead letters."""
    numbers = [number for number in group.dead if number > request.after]
    limit = max(1, min(request.limit, PAGE_MAX))
    found: list[DeadView] = []
    size = 0
    for number in nsmallest(limit, numbers):
        if size >= DEAD_PAGE_BYTES:
            break
        queue, (base, bits, attempt), reason, at, *_ = group.dead[number]
        packed = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        found.append(DeadView(number, queue, attempt, base, packed, reason, at))
        size += len(packed) + len(reason) + 50
    return FoundDead(found, len(found) < len(numbers))


def _queues(pop_groups: PopGroups, number: int, sees: Sees) -> list[tuple[int, int]]:
    """(attachment, queue) of each backlog that is asked for."""
    numbers = [number] if number else list(pop_groups.attached)
    return [
        (each, queue)
        for each in numbers
        if each in pop_groups.attached and sees(pop_groups.attached[each].name)
        for queue in pop_groups.attached[each].group.backlogs
    ]


def _view(group: PopGroup, number: int, queue: int, end: int) -> BacklogView:
    counts = group.counts(queue)._asdict()
    counts["ready"] += counts.pop("held")
    return BacklogView(number, queue, end, group.backlogs[queue].next, **counts)
