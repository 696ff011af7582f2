"""The catalogue and the handlers know the same faults."""

from raftmq.chaos.faults import FAULTS, World, of_world
from raftmq.chaos.real.handlers import LASTING, ONCE
from raftmq.chaos.real.nemesis import HANDLED, OVERLAY_ONLY


def test_every_fault_of_the_real_world_has_a_handler_and_no_other_has() -> None:
    assert {fault.name for fault in of_world(World.REAL)} == HANDLED


def test_lasting_faults_are_held_and_others_happen() -> None:
    assert {name for name in HANDLED if FAULTS[name].lasts} == LASTING.keys()
    assert not LASTING.keys() & ONCE.keys()


def test_at_least_25_kinds_need_no_overlay() -> None:
    assert OVERLAY_ONLY < HANDLED
    assert len({FAULTS[name].code for name in HANDLED - OVERLAY_ONLY}) >= 25
