"""Topics with many queues: the command by which a group begins, and the bound on one POP.

Both are work of one step of the loop. The command by which a group begins names only the queues of
this data group that do not begin at offset 0. And a hand-out makes a lease for each queue, so a
request of a wide topic has a bound of messages that bounds its leases.
"""

from msgspec.structs import replace

from raftmq.broker.replica.group import Group
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.queue_numbers import QUEUE_BITS
from raftmq.pop.calls import OpenGroup
from raftmq.wire.popping import Pop

WIDE_QUEUES = 1024
"""A topic with more queues is *wide*: a POP on it asks for at most this number of messages, as each
may need a lease of its own."""


def opening_of(group: Group, catalog: Catalog, number: int) -> OpenGroup | None:
    """The command that must precede the first one for an attachment in the data group; None: the
    group knows the attachment, with its latest policy."""
    assert isinstance(group.machine, PartitionMachine)
    attachment = catalog.consumer_groups.attachments[number]
    consumer_group = catalog.consumer_groups.groups[attachment.consumer_group]
    attached = group.machine.pop_groups.attached.get(number)
    if attached is not None and attached.version >= consumer_group.version:
        return None
    first = attachment.topic_id << QUEUE_BITS
    topic = catalog.topic_of(first)
    of_topic = topic.groups if topic is not None else ()
    here = [first | n for n, each in enumerate(of_topic) if each == group.number]
    # A queue that the topic got after the group began is read from its first message.
    latest_end = first + attachment.queues if attachment.is_latest else first
    latest = [queue for queue in here if queue < latest_end]
    later = list(group.index.begin_later(here[len(latest) :]))
    return OpenGroup(
        number=number,
        topic=attachment.topic_id,
        consumer_group=consumer_group.name,
        version=consumer_group.version,
        mode=consumer_group.mode,
        policy=consumer_group.policy,
        queues=latest + [queue for queue, _ in later],
        starts=[-1] * len(latest) + [start for _, start in later],
    )


def within_width(catalog: Catalog, request: Pop) -> Pop:
    """The request for as many messages as a hand-out may have leases, if the topic is wide."""
    if request.count <= WIDE_QUEUES:
        return request
    attachment = catalog.consumer_groups.attachments[request.number]
    topic = catalog.topic_of(attachment.topic_id << QUEUE_BITS)
    is_wide = topic is not None and len(topic.groups) > WIDE_QUEUES
    return replace(request, count=WIDE_QUEUES) if is_wide else request
