"""State of a consumer that pops, as the machine has it: is the consumer idle, and does a wish stand
that serves its next request?"""

from raftmq.broker.replica.group import Group
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.popping import Pop

CREDIT_MS = 100
"""Milliseconds by which a wish may end before the wait of its request: the time that requests take
on their way varies."""


def is_idle(group: Group, number: int, consumer: int) -> bool:
    """True if a consumer has nothing in hand, and no wish that runs."""
    assert isinstance(group.machine, PartitionMachine)
    attached = group.machine.serving.attached.get(number)
    if attached is None:
        return True
    now = group.now_ms()
    wish = attached.group.wish_of(consumer)
    holds = next(attached.group.held_by(consumer, now), None) is not None
    return not holds and (wish is None or wish.until <= now)


def has_credit(group: Group, request: Pop) -> bool:
    """True if a wish that stands serves the request: the wish is for at most `request.count`
    messages and at least half of them, with an equal lease time, and lasts for the wait."""
    assert isinstance(group.machine, PartitionMachine)
    attached = group.machine.serving.attached.get(request.number)
    wish = None if attached is None else attached.group.wish_of(request.consumer)
    if attached is None or wish is None or not wish.is_kept:
        return False
    invisible_ms = request.invisible_ms or attached.group.policy.invisible_ms
    return (
        wish.size <= request.count <= 2 * wish.size
        and wish.invisible_ms == invisible_ms
        and wish.until + CREDIT_MS >= group.now_ms() + request.wait_ms
    )
