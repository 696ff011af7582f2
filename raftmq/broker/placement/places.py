"""Whether the members of a group stand apart: on different machines, in different zones."""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

from raftmq.machine.catalog.state import Place

NO_PLACE = Place()
"""The place of a node that says nothing of it."""


class Crowding(NamedTuple):
    """How much the members of a group stand together; of two, the lesser one is better.

    Machines come first: two members on one machine are in one zone as well.
    """

    machines: int
    """Pairs of members on one machine."""
    zones: int
    """Pairs of members in one zone."""


def crowding(members: Iterable[int], places: Mapping[int, Place]) -> Crowding:
    """The crowding of these nodes. All nodes that name no zone are in one.

    >>> places = {1: Place("a"), 2: Place("a"), 3: Place("b", "m"), 4: Place("b", "m")}
    >>> crowding([1, 3], places), crowding([2, 3, 4], places)
    (Crowding(machines=0, zones=0), Crowding(machines=1, zones=1))
    """
    machines = zones = 0
    for one, other in combinations([places.get(member, NO_PLACE) for member in members], 2):
        zones += one.zone == other.zone
        machines += one.machine == other.machine != ""
    return Crowding(machines, zones)


def crowding_min(count: int, places: Iterable[Place]) -> Crowding:
    """A lower bound: `count` members spread evenly over the zones, each on a machine of its own. A
    zone with few nodes, or shared machines, may make it impossible to reach.

    >>> crowding_min(5, [Place("a"), Place("b"), Place("b", "m")])
    Crowding(machines=0, zones=4)
    """
    zones = len({place.zone for place in places})
    share, more = divmod(count, max(1, zones))
    return Crowding(0, more * share + zones * (share * (share - 1) // 2))
