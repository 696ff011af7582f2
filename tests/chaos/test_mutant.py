"""Mutants are found in a checkout, and an installed package says that it has none."""

import pytest

from raftmq.chaos import mutant
from raftmq.chaos.campaign import CannotPlay, Plan
from raftmq.chaos.faults import Schedule, World
from tests.quality.mutants import MUTANTS

ONE = Plan(World.CORE, mutant="44")


def test_checkout_knows_its_mutants() -> None:
    assert mutant.known_mutants() is MUTANTS


def test_package_without_the_list_has_no_mutants_and_says_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mutant, "LIST", "tests.quality.elsewhere")
    assert mutant.known_mutants() == ()
    with pytest.raises(CannotPlay) as refused:
        ONE.play(Schedule(1, 1.0, ()))
    assert "clone of raftmq" in refused.value.fix


def test_mistake_inside_the_list_is_not_taken_for_a_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> object:
        raise ModuleNotFoundError("No module named 'numby'", name="numby")

    monkeypatch.setattr(mutant, "import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        mutant.known_mutants()
