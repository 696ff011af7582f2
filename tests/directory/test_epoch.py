"""Epochs: none comes back, and members that hear each other agree."""

from hypothesis import given
from hypothesis import strategies as st

from raftmq.directory.epoch import Epoch
from raftmq.wire.directory import BOOT_MAX

MEMBERS = (1, 2, 3, 4)
BOOTS = st.dictionaries(st.sampled_from(MEMBERS), st.integers(0, 50), max_size=3)
ACTS = st.lists(st.one_of(st.sets(st.sampled_from(MEMBERS)), BOOTS, st.none()), max_size=12)


@given(ACTS)
def test_epoch_never_comes_back(acts: list[set[int] | dict[int, int] | None]) -> None:
    epoch = Epoch(1, 10)
    seen = [epoch.boots]
    for act in acts:
        match act:
            case None:
                epoch.renew()
                is_new = True
            case set():
                is_new = epoch.follow(act)
            case _:
                is_new = epoch.learn(act)
        assert is_new == (epoch.boots != seen[-1])
        if is_new:
            assert epoch.boots not in seen
            seen.append(epoch.boots)


def test_own_boot_that_others_know_to_be_higher_is_passed() -> None:
    epoch = Epoch(1, 10)
    assert epoch.learn({1: 12})
    assert epoch.boots == {1: 13}
    assert not epoch.learn({1: 13})


def test_boot_beyond_all_clocks_is_passed_over() -> None:
    epoch = Epoch(1, 10)
    epoch.follow([2])
    assert not epoch.learn({1: BOOT_MAX, 2: 2**63 - 1})


def test_members_that_left_are_not_heard_but_not_forgotten() -> None:
    epoch = Epoch(1, 10)
    epoch.follow([2])
    epoch.learn({2: 7})
    epoch.follow([])
    assert not epoch.learn({2: 9})
    epoch.follow([2])
    assert epoch.boots[2] == 7
