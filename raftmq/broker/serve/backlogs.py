"""Requests of operators about consumer groups that pop: their backlogs and dead letters."""

from collections.abc import Callable
from heapq import nsmallest
from typing import Protocol

import msgspec

from raftmq.broker.replica.group import Group
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.pop_groups import PopGroups
from raftmq.pop import calls
from raftmq.pop.groups import PopGroup
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
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

from .answers import answering, elsewhere, read_first
from .connection import Connection

PAGE_MAX = 5000
"""Entries of one answer: about 60 bytes each."""
DEAD_PAGE_BYTES = 256 * 1024
"""Bytes of dead letters in one answer, and one letter more."""


class Service(Protocol):
    """The part of the node that the handlers use."""

    def group(self, number: int) -> Group | None:
        """This node's replica of a partition group."""


class Backlogs:
    """The handlers of these requests."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.handlers: dict[int, Callable[[Connection, Frame], None]] = {
            FrameKind.BACKLOGS: self._find,
            FrameKind.DEAD: self._find_dead,
            FrameKind.BURY: self._change_dead,
        }
        """By frame kind."""

    def _find(self, connection: Connection, frame: Frame) -> None:
        request = unpack(FindBacklogs, frame.header)
        self._read(
            connection, frame, request.partition_group, lambda at: backlogs_page(at, request)
        )

    def _find_dead(self, connection: Connection, frame: Frame) -> None:
        request = unpack(FindDead, frame.header)

        def page(machine: PartitionMachine) -> msgspec.Struct:
            attached = machine.serving.attached.get(request.number)
            return FoundDead([]) if attached is None else dead_page(attached.group, request)

        self._read(connection, frame, request.partition_group, page)

    def _change_dead(self, connection: Connection, frame: Frame) -> None:
        request = unpack(ChangeDead, frame.header)
        group = self._service.group(request.partition_group)
        if group is None:
            connection.refuse(frame.correlation, elsewhere(request.partition_group))
            return
        if len(request.letters) > SETTLE_ITEMS_MAX:
            message = f"{len(request.letters)} letters at once; the limit is {SETTLE_ITEMS_MAX}"
            connection.refuse(frame.correlation, ErrorReply(Reason.TOO_LARGE.value, message))
            return
        letters, bases, bits = request.letters, request.bases, request.bits
        command = calls.ChangeDead(
            request.number, letters, request.is_purge, bases, bits, request.request
        )
        ticket = answering(connection, frame, DeadChanged)
        group.propose(Kind.COMMANDS, encode_commands([command]), ticket)

    def _read(
        self,
        connection: Connection,
        frame: Frame,
        partition_group: int,
        page: Callable[[PartitionMachine], msgspec.Struct],
    ) -> None:
        """Answer with a page of the machine, linearizably."""

        def then(group: Group) -> None:
            assert isinstance(group.machine, PartitionMachine)
            connection.reply(frame.kind, frame.correlation, pack(page(group.machine)))

        group = self._service.group(partition_group)
        read_first(connection, frame, group, partition_group, then)


def backlogs_page(machine: PartitionMachine, request: FindBacklogs) -> FoundBacklogs:
    """A page of the backlogs of a data group's consumer groups."""
    after = (request.after_number, request.after_queue)
    keys = [key for key in _queues(machine.serving, request.number) if key > after]
    page = nsmallest(PAGE_MAX, keys)
    found = [
        _view(machine.serving.attached[number].group, number, queue, machine.ends.get(queue, 0))
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


def _queues(serving: PopGroups, number: int) -> list[tuple[int, int]]:
    """(attachment, queue) of each backlog that is asked for."""
    numbers = [number] if number else list(serving.attached)
    return [
        (each, queue)
        for each in numbers
        if each in serving.attached
        for queue in serving.attached[each].group.backlogs
    ]


def _view(group: PopGroup, number: int, queue: int, end: int) -> BacklogView:
    counts = group.counts(queue)
    return BacklogView(
        number,
        queue,
        end,
        group.backlogs[queue].next,
        counts.leased,
        counts.waiting,
        counts.ready + counts.held,
        counts.dead,
        counts.acked,
        counts.passed,
        counts.lost,
        counts.purged,
    )
