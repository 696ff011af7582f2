"""Requests of operators about consumer groups that pop: their backlogs and dead letters."""

from collections.abc import Iterator
from heapq import nsmallest

from msgspec.structs import replace

from raftmq.access.rules import Resource
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.service import Service
from raftmq.errors import Reason
from raftmq.machine.machine import PartitionMachine
from raftmq.pop import calls
from raftmq.pop.groups import PopGroup
from raftmq.pop.spans import to_bytes
from raftmq.wire.messages import ErrorReply, FrameKind
from raftmq.wire.numbers import NUMBER_MAX
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
from .pages import Sees, first_page

PAGE_MAX = 2000
"""Entries of one answer: about 10 us of the event loop each."""
_VIEW_BYTES = 60
DEAD_PAGE_BYTES = 256 * 1024
"""Bytes of dead letters in one answer, and one letter more."""


class PopGroupRequests(Service):
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
        def page(request: FindBacklogs) -> FoundBacklogs | FindBacklogs:
            assert isinstance(group.machine, PartitionMachine)
            sees = self._node.gate.sees(asked.connection, Resource.GROUP)
            return backlogs_page(group.machine, request, sees)

        return asked.read_page(group, request, page)

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
) -> FoundBacklogs | FindBacklogs:
    """A page of the backlogs of a data group's consumer groups, as far as `sees` shows them."""
    entries = _backlogs(machine, request, sees)
    views, last = first_page(entries, lambda _: _VIEW_BYTES, looks_max=PAGE_MAX)
    if last is None or views:
        return FoundBacklogs(views, is_cut=last is not None)
    return replace(request, after_number=last[0], after_queue=last[1])


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
        packed = to_bytes(bits)
        found.append(DeadView(number, queue, attempt, base, packed, reason, at))
        size += len(packed) + len(reason) + 50
    return FoundDead(found, len(found) < len(numbers))


def _backlogs(
    machine: PartitionMachine, request: FindBacklogs, sees: Sees
) -> Iterator[tuple[tuple[int, int], BacklogView | None]]:
    """The backlog of each attachment and queue that is asked for, in order."""
    known = machine.pop_groups.attached
    for number in sorted(known.keys() & {request.number} if request.number else known):
        if number < request.after_number:
            continue
        name, group = known[number].name, known[number].group
        after = request.after_queue if number == request.after_number else -1
        if not sees(name):
            if after < NUMBER_MAX:
                yield (number, NUMBER_MAX), None
            continue
        if not group.backlogs and after < NUMBER_MAX:
            yield (number, NUMBER_MAX), None  # A look all the same.
        for queue in sorted(group.backlogs):
            if queue > after:
                view = _view(group, number, queue, machine.ends.get(queue, 0))
                yield (number, queue), view


def _view(group: PopGroup, number: int, queue: int, end: int) -> BacklogView:
    counts = group.counts(queue)._asdict()
    counts["ready"] += counts.pop("held")
    return BacklogView(number, queue, end, group.backlogs.look(queue).next, **counts)
