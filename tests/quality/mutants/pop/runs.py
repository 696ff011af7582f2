"""Mutants of the runs of a key: several messages of a key in one lease.

They are hunted as those of `pop_groups`.
"""

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.pop.backlog import Backlog
from raftmq.pop.keyed import KeyedBacklog
from raftmq.pop.pieces import Piece


def leaves_the_rest_in_hand(patch: Patch) -> None:
    """375"""
    patch.set(KeyedBacklog, "behind", Backlog.behind)


def fails_all_together(patch: Patch) -> None:
    """376"""
    patch.set(KeyedBacklog, "heads", Backlog.heads)


def frees_a_key_with_the_first_ack(patch: Patch) -> None:
    """377"""
    ack = KeyedBacklog.ack

    def early(self: KeyedBacklog, messages: Piece) -> None:
        self._busy.update(dict.fromkeys(self._busy, 1))
        ack(self, messages)

    patch.set(KeyedBacklog, "ack", early)


def overtakes_when_it_comes_back(patch: Patch) -> None:
    """378"""
    patch.set(KeyedBacklog, "put_back", Backlog.put_back)


def forgets_attempts_of_those_held(patch: Patch) -> None:
    """379"""
    hold = KeyedBacklog._hold

    def as_new(self: KeyedBacklog, offsets: list[int], key: int, attempt: int = 0) -> None:
        hold(self, offsets, key)

    patch.set(KeyedBacklog, "_hold", as_new)


MUTANTS = (
    Mutant(
        number=375,
        name="run-stays-in-hand",
        what="The messages behind one that failed stay in hand, and are acked before it.",
        killers=("Q14", "Q19", "Q8", "assert"),
        plant=leaves_the_rest_in_hand,
        is_popping=True,
    ),
    Mutant(
        number=376,
        name="run-fails-together",
        what="A lease that runs out is a failure of all messages of a key.",
        killers=("Q8", "Q12", "Q16", "Q19"),
        plant=fails_all_together,
        is_popping=True,
    ),
    Mutant(
        number=377,
        name="run-in-two-hands",
        what="The first ack of a run lets the next messages of its key go.",
        killers=("R21", "Q19", "assert"),
        plant=frees_a_key_with_the_first_ack,
        is_popping=True,
    ),
    Mutant(
        number=378,
        name="run-overtaken",
        what="A message that comes back does not wait for earlier ones of its key.",
        killers=("Q19", "assert"),
        plant=overtakes_when_it_comes_back,
        is_popping=True,
    ),
    Mutant(
        number=379,
        name="held-as-new",
        what="A message that failed and stands in line again loses its attempts.",
        killers=("Q12", "Q8"),
        plant=forgets_attempts_of_those_held,
        is_popping=True,
    ),
)
