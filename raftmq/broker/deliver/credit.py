"""State of a consumer that pops, and of its group, as the machine has them: is the consumer idle,
does credit stand that serves its next request, and may messages be there that are not fed yet?"""

from raftmq.broker.replica.group import Group
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.machine import PartitionMachine
from raftmq.pop.policy import Mode, Order
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


def is_unfed(group: Group, catalog: Catalog, number: int) -> bool:
    """True if messages may be there that go out as soon as they are fed: see `feeds`."""
    machine = group.machine
    assert isinstance(machine, PartitionMachine)
    if number in machine.pop_groups.attached:
        fed = machine.pop_groups.fed.get(number)
        return fed is not None and bool(fed.wants_feed(machine.ends))
    # The request that opens the group here precedes all feeds.
    attachment = catalog.consumer_groups.attachments[number]
    consumer_group, topic = attachment.consumer_group, attachment.topic_id
    settings = catalog.consumer_groups.groups[consumer_group]
    is_keyed = settings.mode is Mode.ORDERED and settings.policy.order is Order.KEY
    is_filtered = bool(machine.subscriptions.of(topic, consumer_group))
    return (is_keyed or is_filtered) and bool(machine.ends.of_topic(topic))
