"""The catalog's subscriptions that a data group's log lacks, as one entry for the log.

The leader of a data group compares when the catalog has changed, and proposes the difference. A
long difference goes in parts, of which the last one carries the new version.
"""

from collections.abc import Iterator

from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.subscriptions import Change, Resubscribe, Subscriptions

CHANGES_MAX = 1000
"""Changes in one entry."""
CHARACTERS_MAX = 256 * 1024
"""Characters of filters in one entry, and one filter more."""


def resubscription(
    catalog: Catalog, partition_group: int, known: Subscriptions
) -> Resubscribe | None:
    """The next entry for a data group's log; None: the log has all that this node's catalog has."""
    version = catalog.subscribers.version
    if version <= known.version:
        return None
    changes: list[Change] = []
    characters = 0
    for change in _differences(catalog, partition_group, known):
        if len(changes) >= CHANGES_MAX or characters >= CHARACTERS_MAX:
            return Resubscribe(known.version, known.version, changes)
        changes.append(change)
        characters += len(change.expression)
    return Resubscribe(known.version, version, changes)


def _differences(catalog: Catalog, partition_group: int, known: Subscriptions) -> Iterator[Change]:
    have = {(topic, name): number for topic, name, number in known.latest()}
    for topic in catalog.topics.values():
        of_topic = catalog.subscribers.of_topic.get(topic.id)
        if of_topic is None or partition_group not in topic.groups:
            continue
        for name, wanted in of_topic.items():
            if have.pop((topic.id, name), 0) != wanted.number:
                yield Change(topic.id, name, wanted.number, wanted.expression)
    for topic_id, name in have:
        yield Change(topic_id, name, 0)
