"""Feature levels: what is written at each level, and what older software does with it."""

from pathlib import Path

import cbor2
import pytest

from raftmq.errors import Reason
from raftmq.log.record import Kind, Record, decode_many, encode
from raftmq.machine.catalog.catalog import (
    Bootstrap,
    Catalog,
    Command,
    Node,
    PutGroup,
    PutNode,
    RemoveNode,
)
from raftmq.machine.catalog.levels import FIRST_LEVEL, LEVEL, VERSIONS, RaiseLevel
from raftmq.machine.catalog.nodes import DrainNode
from raftmq.machine.catalog.state import Group
from raftmq.machine.commands import encode_commands
from raftmq.results import Changed, Refused, Result, UnsupportedVersion

GOLDEN = Path(__file__).parent / "golden" / "catalog"
FOUNDING = Bootstrap([Node(n, "host", n) for n in (1, 2, 3)], groups=3, replicas=3)


def record(catalog: Catalog, command: Command, version: int) -> Record:
    return encode(
        encode_commands([command]),
        index=catalog.applied + 1,
        term=1,
        kind=Kind.COMMANDS,
        timestamp=catalog.applied,
        chain=0,
        version=version,
    )


def run(catalog: Catalog, *commands: Command) -> Result:
    """The result of the last command."""
    for command in commands:
        (result,) = catalog.apply(record(catalog, command, catalog.record_version))
    return result


def founded(*commands: Command) -> Catalog:
    catalog = Catalog()
    run(catalog, FOUNDING, *commands)
    return catalog


def test_no_version_falls_from_level_to_level() -> None:
    assert list(VERSIONS) == list(range(FIRST_LEVEL, LEVEL + 1))
    for lower, higher in zip(VERSIONS.values(), list(VERSIONS.values())[1:], strict=False):
        assert all(one <= other for one, other in zip(lower, higher, strict=True))
        # Older software stops at the record that raises the level, and at such a snapshot.
        assert lower.catalog < higher.catalog
        assert lower.state < higher.state


def test_at_the_first_level_a_snapshot_is_the_older_softwares_byte_for_byte() -> None:
    # The golden files were written by software that knew no levels.
    log = decode_many((GOLDEN / "v5.log").read_bytes())
    golden = (GOLDEN / "v5.snapshot").read_bytes()
    catalog = Catalog()
    for each in log[: Catalog.restore(golden).applied]:
        catalog.apply(each)
    assert catalog.level == FIRST_LEVEL
    assert catalog.snapshot() == golden
    assert cbor2.loads(golden)[0] == catalog.state_version == VERSIONS[FIRST_LEVEL].state


def test_a_level_never_falls() -> None:
    catalog = founded()
    assert run(catalog, RaiseLevel(LEVEL)) == Changed(LEVEL)
    assert run(catalog, RaiseLevel(FIRST_LEVEL)) == Changed(LEVEL)
    assert (catalog.level, catalog.state_version) == (LEVEL, VERSIONS[LEVEL].state)


def test_a_snapshot_keeps_the_level_and_the_drained_nodes() -> None:
    catalog = founded(RaiseLevel(LEVEL), DrainNode(3), DrainNode(1))
    state = catalog.snapshot()
    assert cbor2.loads(state)[0] == VERSIONS[LEVEL].state
    restored = Catalog.restore(state)
    assert (restored.level, restored.drained) == (LEVEL, {1, 3})
    assert restored.state_version == catalog.state_version
    assert restored.snapshot() == state


def test_older_software_stops_at_the_record_that_raises_the_level() -> None:
    catalog = founded()
    catalog.record_version = VERSIONS[FIRST_LEVEL].catalog
    raising = record(catalog, RaiseLevel(2), VERSIONS[2].catalog)
    with pytest.raises(UnsupportedVersion, match="has version 6, this software knows up to 5"):
        catalog.apply(raising)
    assert catalog.level == FIRST_LEVEL


def reason(result: Result) -> Reason:
    assert isinstance(result, Refused)
    return result.reason


def test_a_drain_is_a_mark_that_a_repeat_does_not_change() -> None:
    catalog = founded()
    assert run(catalog, DrainNode(2)) == Changed(True)
    assert run(catalog, DrainNode(2)) == Changed(False)
    assert catalog.drained == {2}
    assert run(catalog, DrainNode(2, False)) == Changed(True)
    assert run(catalog, DrainNode(2, False)) == Changed(False)
    assert catalog.drained == set()


def test_a_node_that_is_no_member_is_not_drained() -> None:
    result = run(founded(), DrainNode(7))
    assert reason(result) is Reason.UNKNOWN_NODE
    assert "the members are 1, 2, 3" in str(result)


def test_a_drain_that_leaves_a_group_without_a_leader_is_refused() -> None:
    catalog = founded(PutGroup(Group(2, [2, 3])), DrainNode(3))
    result = run(catalog, DrainNode(2))
    assert reason(result) is Reason.BAD_ARGUMENT
    assert "groups [2] would have no node that may lead: undrain node 3 first" in str(result)
    assert run(catalog, DrainNode(1)) == Changed(True)


def test_nodes_that_only_learn_in_the_system_group_cannot_lead_it() -> None:
    fourth = PutNode(Node(4, "host", 4))
    catalog = founded(RaiseLevel(LEVEL), fourth, PutGroup(Group(0, [4, 1, 2, 3])))
    run(catalog, *(PutGroup(Group(number, [1, 2, 3, 4])) for number in (1, 2, 3)))
    assert run(catalog, DrainNode(1), DrainNode(2)) == Changed(True)
    result = run(catalog, DrainNode(3))
    assert "groups [0] would have no node that may lead" in str(result)


def test_the_last_node_that_may_lead_is_not_drained() -> None:
    catalog = founded(DrainNode(1), DrainNode(2))
    assert reason(run(catalog, DrainNode(3))) is Reason.BAD_ARGUMENT
    assert run(catalog, DrainNode(1, False), DrainNode(3)) == Changed(True)


def test_a_node_that_left_is_no_longer_drained() -> None:
    moved = [PutGroup(Group(number, [1, 2])) for number in range(4)]
    catalog = founded(DrainNode(3), *moved, RemoveNode(3))
    assert catalog.drained == set()
