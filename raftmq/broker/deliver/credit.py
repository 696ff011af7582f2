"""State of a consumer that pops, as the machine has it: is the consumer idle, and does credit stand
that serves its next request?"""

from raftmq.broker.replica.group import Group
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.popping import Pop

CREDIT_MS = 100
"""Milliseconds by which credit may end before the wait of its request: the time that requests take
on their way varies."""


def is_idle(group: Group, number: int, consumer: int) -> bool:
    """True if a consumer has nothing in hand, and no credit that runs."""
    assert isinstance(group.machine, PartitionMachine)
    attached = group.machine.pop_groups.attached.get(number)
    if attached is None:
        return True
    now = group.now_ms()
    credit = attached.group.credits.of(consumer)
    holds = next(attached.group.held_by(consumer, now), None) is not None
    return not holds and (credit is None or credit.until <= now)


def has_credit(group: Group, request: Pop) -> bool:
    """True if credit that stands serves the request, and both are kept: the credit is for at most
    `request.count` messages and at least half of them, with an equal lease time, and lasts for the
    wait."""
    assert isinstance(group.machine, PartitionMachine)
    attached = group.machine.pop_groups.attached.get(request.number)
    credit = None if attached is None else attached.group.credits.of(request.consumer)
    if attached is None or credit is None or not (credit.is_kept and request.is_kept):
        return False
    invisible_ms = request.invisible_ms or attached.group.policy.invisible_ms
    return (
        credit.size <= request.count <= 2 * credit.size
        and credit.invisible_ms == invisible_ms
        and credit.until + CREDIT_MS >= group.now_ms() + request.wait_ms
    )
