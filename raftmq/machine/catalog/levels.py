"""Feature levels: the formats that all nodes of a cluster can read.

In a rolling upgrade, nodes with newer software run beside nodes with older software. A record or a
snapshot that the older software cannot read would stop its node, so the newer software goes on
writing what the older one reads. The catalog holds the cluster's *level*, which stands for one
version of each format:

| level | records of the catalog | its snapshots | records of data groups | new |
|---:|---:|---:|---:|---|
| 1 | 5 | 11 | 3 | |
| 2 | 6 | 12 | 3 | the level itself, drained and absent nodes, places, moves, new groups, settings |

Each node tells the others the highest level that it allows. Once all nodes allow a higher one than
the cluster has, the leader of the system group raises the cluster to the lowest that was told
(`raftmq.broker.cluster.upgrade`). A level never falls.

Invariants:
- Records have the version of the cluster's level. From `RaiseLevel` on, with that record itself,
  the leader of the system group writes the new level's: older software must stop there, and not
  pass the record over.
- The version of a snapshot follows from the level in its state.

Source: CockroachDB's cluster version, which rises when all nodes have the new release.
"""

from typing import NamedTuple

import msgspec


class Versions(NamedTuple):
    """The versions that are written at one level."""

    catalog: int
    """Of records of the system group."""
    state: int
    """Of the catalog's snapshots."""
    data: int
    """Of records of data groups."""


VERSIONS = {1: Versions(catalog=5, state=11, data=3), 2: Versions(catalog=6, state=12, data=3)}
"""By level."""
FIRST_LEVEL = 1
"""The level of a new cluster, and of software that tells none."""
LEVEL = max(VERSIONS)
"""The highest level that this software knows."""
DRAIN_LEVEL = 2
"""From this level on nodes can be drained."""
GROUPS_LEVEL = 2
"""From this level on data groups can be added."""
MOVES_LEVEL = 2
"""From this level on groups can be moved one by one."""
SETTINGS_LEVEL = 2
"""From this level on there are dynamic settings."""
ABSENCE_LEVEL = 2
"""From this level on nodes can be absent."""
PLACES_LEVEL = 2
"""From this level on the catalog has the places of nodes."""
LEARNERS_LEVEL = 2
"""From this level on the system group has few voters. Older software makes all members voters, so
two leaders would undo each other's changes."""


class RaiseLevel(msgspec.Struct, frozen=True, array_like=True, tag="raise_level"):
    """All nodes of the cluster allow this level. Only the system group's leader proposes it."""

    level: int
    """The new level of the cluster; a lower one than it has changes nothing."""
