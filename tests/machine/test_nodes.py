"""Notes of the catalog on nodes: where they stand, and which groups they carry."""

import pytest

from raftmq.errors import Reason
from raftmq.machine.catalog.catalog import Catalog, Command, Node, PutNode, RemoveNode
from raftmq.machine.catalog.levels import LEVEL, RaiseLevel
from raftmq.machine.catalog.nodes import DrainNode, MoveGroup, NoteAbsence, PlaceNode
from raftmq.machine.catalog.state import Place
from raftmq.results import Changed, Refused, Result

from .test_levels import founded, run

GROUP = 1


def moved(catalog: Catalog, *members: int, before: tuple[int, ...] = (1, 2, 3)) -> Result:
    return run(catalog, MoveGroup(GROUP, list(members), list(before)))


def grown(*commands: Command) -> Catalog:
    """A cluster of four nodes with groups of three."""
    return founded(RaiseLevel(LEVEL), PutNode(Node(4, "host", 4)), *commands)


def test_a_group_moves_from_the_nodes_that_its_mover_saw() -> None:
    catalog = grown()
    assert moved(catalog, 1, 2, 4) == Changed(True)
    assert catalog.groups[GROUP].members == [1, 2, 4]
    assert catalog.groups[GROUP].founders == [1, 2, 3]
    # A repeat, by whoever.
    assert moved(catalog, 1, 2, 4) == Changed(False)
    late = moved(catalog, 4, 2, 3)
    assert isinstance(late, Refused)
    assert "group 1 is on nodes [1, 2, 4] by now, not [1, 2, 3]" in late.message
    assert catalog.groups[GROUP].members == [1, 2, 4]


def test_the_order_of_members_moves_as_well() -> None:
    catalog = grown()
    assert moved(catalog, 3, 2, 1) == Changed(True)
    assert isinstance(moved(catalog, 2, 1, 3), Refused)
    assert moved(catalog, 2, 1, 3, before=(3, 2, 1)) == Changed(True)


@pytest.mark.parametrize(
    ("command", "reason", "text"),
    [
        (MoveGroup(0, [1], [1, 2, 3]), Reason.BAD_ARGUMENT, "there is no data group 0"),
        (MoveGroup(9, [1], [1, 2, 3]), Reason.BAD_ARGUMENT, "there are 1, 2, 3"),
        (MoveGroup(1, [], [1, 2, 3]), Reason.BAD_ARGUMENT, "has 3 copies: name as many nodes"),
        (MoveGroup(1, [1, 1, 2], [1, 2, 3]), Reason.BAD_ARGUMENT, "each once"),
        (MoveGroup(1, [1, 2, 7], [1, 2, 3]), Reason.UNKNOWN_NODE, "there is no node 7"),
        (MoveGroup(1, [1, 2, 5], [1, 2, 3]), Reason.BAD_ARGUMENT, "node 5 is leaving"),
        (MoveGroup(1, [1, 2, 6], [1, 2, 3]), Reason.BAD_ARGUMENT, "node 6 has been silent"),
        (MoveGroup(1, [1, 2], [1, 2, 3]), Reason.BAD_ARGUMENT, "has 3 copies"),
        (MoveGroup(1, [1, 2, 3, 4], [1, 2, 3]), Reason.BAD_ARGUMENT, "has 3 copies"),
    ],
)
def test_a_group_is_not_moved_to_where_nothing_can_carry_it(
    command: MoveGroup, reason: Reason, text: str
) -> None:
    leaving = PutNode(Node(5, "host", 5, is_leaving=True))
    catalog = grown(leaving, DrainNode(4), PutNode(Node(6, "host", 6)), NoteAbsence(6))
    result = run(catalog, command)
    assert isinstance(result, Refused)
    assert (result.reason, text in result.message) == (reason, True)
    assert catalog.groups[GROUP].members == [1, 2, 3]


def test_places_are_kept_sorted_and_go_with_their_nodes() -> None:
    catalog, other = grown(), grown()
    run(catalog, PlaceNode(4, "b", "m"), PlaceNode(1, "a", ""), PlaceNode(2, "a", ""))
    run(other, PlaceNode(2, "a", ""), PlaceNode(1, "a", ""), PlaceNode(4, "b", "m"))
    assert list(catalog.places) == list(other.places) == [1, 2, 4]
    assert catalog.places[4] == Place("b", "m")
    assert Catalog.restore(catalog.snapshot()).places == catalog.places
    run(catalog, PlaceNode(2, "", ""), RemoveNode(4))
    assert catalog.places == {1: Place("a")}
    refused = run(catalog, PlaceNode(4, "b", ""))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.UNKNOWN_NODE


def test_an_absence_is_kept_until_the_node_answers_or_leaves() -> None:
    catalog = grown()
    assert run(catalog, NoteAbsence(4)) == Changed(True)
    assert run(catalog, NoteAbsence(4)) == Changed(False)
    assert Catalog.restore(catalog.snapshot()).absent == {4}
    assert run(catalog, NoteAbsence(4, is_absent=False)) == Changed(True)
    assert run(catalog, NoteAbsence(4, is_absent=False)) == Changed(False)
    run(catalog, NoteAbsence(4), RemoveNode(4))
    assert catalog.absent == set()
    refused = run(catalog, NoteAbsence(4))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.UNKNOWN_NODE


def test_a_drain_leaves_each_group_a_node_that_is_not_absent() -> None:
    catalog = founded(RaiseLevel(LEVEL))
    run(catalog, NoteAbsence(3))
    assert run(catalog, DrainNode(1)) == Changed(True)
    refused = run(catalog, DrainNode(2))
    assert isinstance(refused, Refused)
    assert "would have no node that may lead" in refused.message
