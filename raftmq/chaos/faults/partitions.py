"""Shapes of partitions: which pairs of nodes are cut, as functions of nodes and members.

All functions return pairs in a fixed order, each once. A node is named by its number, and clients
by `CLIENTS`; a shape that does not name clients lets them reach all nodes.

Sources: the grudges of Jepsen's partitioners; OmniPaxos (EuroSys 2023) for `star` and `chain`.
"""

from collections.abc import Iterable, Sequence
from itertools import permutations

from .arena import Pair


def between(side: Iterable[int], others: Iterable[int]) -> list[Pair]:
    """Both directions between two sides."""
    there = [(a, b) for a in side for b in list(others)]
    return there + [(b, a) for a, b in there]


def isolate(nodes: Sequence[int], members: Iterable[int]) -> list[Pair]:
    """Nodes and the other members cannot reach each other."""
    return between(nodes, [other for other in members if other not in nodes])


def mute(nodes: Sequence[int], members: Iterable[int]) -> list[Pair]:
    """The words of nodes do not reach other members."""
    return [(node, other) for node in nodes for other in members if other not in nodes]


def deaf(nodes: Sequence[int], members: Iterable[int]) -> list[Pair]:
    """Nodes do not hear other members."""
    return [(b, a) for a, b in mute(nodes, members)]


def bridge(nodes: Sequence[int], members: Iterable[int]) -> list[Pair]:
    """Two halves that only the given nodes reach."""
    rest = [member for member in members if member not in nodes]
    half = len(rest) // 2
    return between(rest[:half], rest[half:])


def star(nodes: Sequence[int], members: Iterable[int]) -> list[Pair]:
    """All members reach the given nodes, and no other member."""
    return list(permutations([member for member in members if member not in nodes], 2))


def ring(nodes: Sequence[int], members: Iterable[int] = ()) -> list[Pair]:
    """Each node reaches its nearest neighbours on a ring, which make a majority with it."""
    count = len(nodes)
    reach = (count // 2 + 1) // 2
    return [
        (a, b)
        for (i, a), (j, b) in permutations(enumerate(nodes), 2)
        if min((i - j) % count, (j - i) % count) > reach
    ]


def chain(nodes: Sequence[int], members: Iterable[int] = ()) -> list[Pair]:
    """Each node reaches its neighbours in a row."""
    return [(a, b) for (i, a), (j, b) in permutations(enumerate(nodes), 2) if abs(i - j) > 1]
