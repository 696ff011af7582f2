"""Committed offsets: commits that count, commits that are fenced, and forgetting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import Reason
from raftmq.machine import offsets
from raftmq.machine.offsets import (
    CLAIM,
    FENCE_MS,
    NUMBERS_MAX,
    CommitOffsets,
    ForgetOffsets,
    Offsets,
)
from raftmq.results import Changed, Refused, Result

ENDS = {1: 100, 2: 100, 3: 100}
DAY = 24 * 3600 * 1000
ALICE, BOB = 901, 902


class Table:
    """Offsets with a clock."""

    def __init__(self, offsets_max: int = 1000) -> None:
        self.offsets = Offsets(offsets_max)
        self.now = 5

    def commit(
        self,
        offset: int,
        epoch: int = 0,
        sequence: int = 0,
        *,
        queue: int = 1,
        name: str = "g",
        kept_ms: int = 0,
        is_reset: bool = False,
        sender: int = 0,
    ) -> Result:
        self.offsets.pass_time(self.now)
        epochs = [epoch] if epoch else []
        command = CommitOffsets(
            name, [queue], [offset], epochs, sequence, kept_ms, is_reset, sender
        )
        return self.offsets.commit(command, ENDS, self.now)

    def at(self, queue: int = 1, name: str = "g") -> int | None:
        found = self.offsets.committed.get(name, {}).get(queue)
        return found[0] if found is not None else None

    def restart(self) -> None:
        committed, owned = self.offsets.dump(), self.offsets.dump_owned()
        self.offsets = Offsets(1000)
        self.offsets.load(committed, owned)
        assert (self.offsets.dump(), self.offsets.dump_owned()) == (committed, owned)


def reason(result: Result) -> Reason:
    assert isinstance(result, Refused)
    return result.reason


def test_commit_of_a_former_owner_is_fenced_once_the_new_one_claimed() -> None:
    table = Table()
    assert table.commit(40, 7) == Changed([])
    assert table.commit(CLAIM, 9) == Changed([])
    assert table.at() == 40
    assert table.commit(55, 7, 1) == Changed([1])
    assert table.at() == 40
    assert table.commit(41, 9, 1) == Changed([])
    assert table.at() == 41


def test_late_claim_of_a_former_owner_is_fenced() -> None:
    table = Table()
    table.commit(CLAIM, 9)
    assert table.commit(CLAIM, 7) == Changed([1])
    assert table.commit(40, 9, 1) == Changed([])


def test_claim_alone_commits_nothing() -> None:
    table = Table()
    table.commit(CLAIM, 9)
    assert table.at() is None
    assert table.offsets.committed == {}


def test_commit_that_was_overtaken_changes_nothing() -> None:
    table = Table()
    table.commit(50, 7, 2)
    assert table.commit(20, 7, 1) == Changed([])
    assert table.at() == 50
    assert table.commit(50, 7, 2) == Changed([])
    assert table.commit(20, 7, 3) == Changed([])
    assert table.at() == 20


def test_fenced_queue_does_not_keep_others_of_the_commit_back() -> None:
    table = Table()
    table.commit(CLAIM, 9, queue=2)
    command = CommitOffsets("g", [1, 2, 3], [10, 20, 30], [7, 7, 7], 1)
    assert table.offsets.commit(command, ENDS, 0) == Changed([2])
    assert [table.at(queue) for queue in (1, 2, 3)] == [10, None, 30]


def test_plain_commit_is_refused_where_queues_have_owners() -> None:
    table = Table()
    table.commit(40, 7)
    assert reason(table.commit(50)) is Reason.FENCED
    assert table.commit(50, queue=2) == Changed()
    assert table.commit(50, name="h") == Changed()
    assert table.commit(10, is_reset=True) == Changed()
    assert table.at() == 10
    assert table.commit(41, 7, 1) == Changed([])


def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    table = Table()
    commit = table.offsets.commit
    assert reason(commit(CommitOffsets("g", [1], []), ENDS, 0)) is Reason.BAD_ARGUMENT
    assert reason(commit(CommitOffsets("g", [1], [0], [1, 2]), ENDS, 0)) is Reason.BAD_ARGUMENT
    assert reason(commit(CommitOffsets("g", [1, 2], [0, 0], [1, 0]), ENDS, 0)) is (
        Reason.BAD_ARGUMENT
    )
    assert reason(table.commit(CLAIM)) is Reason.OFFSET_OUT_OF_RANGE
    assert reason(table.commit(-2, 7)) is Reason.OFFSET_OUT_OF_RANGE
    assert reason(table.commit(101, 7)) is Reason.OFFSET_OUT_OF_RANGE
    assert reason(table.commit(1, kept_ms=-1)) is Reason.BAD_ARGUMENT
    assert reason(table.commit(1, kept_ms=91 * DAY)) is Reason.BAD_ARGUMENT
    assert table.offsets.dump() == []
    assert table.offsets.dump_owned() == [[], [], 0, [], 0, []]


def test_epochs_count_among_what_is_bounded() -> None:
    table = Table(offsets_max=2)
    assert table.commit(4, 7) == Changed([])
    assert table.commit(5, 8, 1) == Changed([])
    assert reason(table.commit(CLAIM, 7, queue=2)) is Reason.BAD_ARGUMENT
    table.offsets.drop_queues({1})
    assert table.commit(4, 7, queue=2) == Changed([])


def test_offsets_with_a_lease_are_forgotten_when_it_runs_out() -> None:
    table = Table()
    table.commit(4, 7, kept_ms=DAY)
    table.commit(5, name="h")
    table.now += DAY - 1
    table.offsets.pass_time(table.now)
    assert table.at() == 4
    table.now += 1
    table.offsets.pass_time(table.now)
    assert (table.at(), table.at(name="h")) == (None, 5)
    assert table.offsets.dump_owned() == [[], [], 0, [], 0, []]


def test_each_commit_renews_the_lease() -> None:
    table = Table()
    for n in range(5):
        table.commit(n, kept_ms=DAY)
        table.now += DAY - 1
    table.restart()
    table.offsets.pass_time(table.now)
    assert table.at() == 4
    table.offsets.pass_time(table.now + 1)
    assert table.at() is None


def test_commit_without_a_lease_keeps_the_offsets_for_ever_and_a_reset_keeps_the_lease() -> None:
    table = Table()
    table.commit(4, kept_ms=DAY)
    table.commit(3, is_reset=True)
    assert table.offsets.leases == {"g": (DAY, 5 + DAY)}
    table.commit(5)
    table.offsets.pass_time(table.now + 9 * DAY)
    assert table.at() == 5


def test_commit_that_is_fenced_does_not_touch_the_lease() -> None:
    table = Table()
    table.commit(8, 60, kept_ms=DAY)
    assert table.commit(9, 7) == Changed([1])
    assert table.offsets.leases == {"g": (DAY, 5 + DAY)}


def test_dropped_queues_take_epochs_and_leases_along() -> None:
    table = Table()
    table.commit(4, 7, kept_ms=DAY)
    table.offsets.drop_queues({1})
    assert table.offsets.dump() == []
    assert table.offsets.dump_owned() == [[], [], 0, [], 0, []]
    table.offsets.pass_time(table.now + 9 * DAY)


COMMITS = st.tuples(
    st.integers(1, 4),  # epoch
    st.integers(0, 3),  # sequence
    st.integers(-1, 20),  # offset
    st.booleans(),  # whether the machine restarts before
)


@given(st.lists(COMMITS, max_size=25))
def test_what_counts_is_the_highest_epoch_and_within_it_the_highest_number(
    commits: list[tuple[int, int, int, bool]],
) -> None:
    table = Table()
    best, expected = (0, 0), None
    for epoch, sequence, offset, is_restarted in commits:
        if is_restarted:
            table.restart()
        result = table.commit(offset, epoch, sequence)
        assert result == Changed([1] if epoch < best[0] else [])
        if (epoch, sequence) >= best:
            best = (epoch, sequence)
            expected = offset if offset != CLAIM else expected
        assert table.at() == expected


# Senders


def test_plain_commit_that_comes_again_spares_what_others_committed_since() -> None:
    table = Table()
    assert table.commit(40, sequence=1, sender=ALICE) == Changed()
    assert table.commit(60, sequence=1, sender=BOB) == Changed()
    assert table.commit(40, sequence=1, sender=ALICE) == Changed()
    assert table.at() == 60
    table.restart()
    assert table.commit(40, sequence=1, sender=ALICE) == Changed()
    assert table.at() == 60
    assert table.commit(40, sequence=2, sender=ALICE) == Changed()
    assert table.at() == 40


def test_plain_commit_does_not_count_after_a_later_one_of_its_sender() -> None:
    table = Table()
    table.commit(60, sequence=2, sender=ALICE, kept_ms=DAY)
    table.now += 1
    assert table.commit(40, sequence=1, sender=ALICE, kept_ms=DAY) == Changed()
    assert table.at() == 60
    assert table.offsets.leases == {"g": (DAY, 5 + DAY)}


def test_plain_commit_counts_for_queues_that_no_later_one_named() -> None:
    table = Table()
    table.commit(60, sequence=2, sender=ALICE)
    command = CommitOffsets("g", [1, 2, 2], [40, 41, 42], [], 1, sender=ALICE)
    assert table.offsets.commit(command, ENDS, 0) == Changed()
    assert (table.at(), table.at(2)) == (60, 42)


def test_commit_without_a_sender_counts_each_time() -> None:
    table = Table()
    for offset in (40, 60, 40):
        assert table.commit(offset, sequence=1) == Changed()
        assert table.at() == offset
    assert table.offsets.dump_owned()[5] == []


def test_repeat_is_done_even_if_it_would_be_refused_by_now() -> None:
    table = Table()
    table.commit(40, sequence=1, sender=ALICE)
    table.commit(CLAIM, 9)
    assert table.commit(40, sequence=1, sender=ALICE) == Changed()
    assert reason(table.commit(41, sequence=2, sender=ALICE)) is Reason.FENCED
    # A refused commit is not remembered as carried out: its repeat may succeed.
    forget(table, "g", since=0, until=50)
    assert table.commit(41, sequence=2, sender=ALICE) == Changed()
    assert table.at() == 41


def test_repeat_does_not_begin_a_group_that_was_deleted_or_has_run_out() -> None:
    table = Table()
    table.commit(40, sequence=1, sender=ALICE)
    table.commit(40, sequence=1, sender=BOB, name="h", kept_ms=DAY)
    forget(table, "g", since=0, until=50)
    table.now += DAY
    table.offsets.pass_time(table.now)
    table.commit(40, sequence=1, sender=ALICE)
    table.commit(40, sequence=1, sender=BOB, name="h", kept_ms=DAY)
    assert table.offsets.dump() == []


def test_numbers_of_senders_are_bounded() -> None:
    table, queues = Table(1_000_000), list(range(1000))
    senders = NUMBERS_MAX // len(queues) + 9
    table.commit(1, sequence=1, sender=ALICE)
    for sender in range(1, senders):
        command = CommitOffsets("g", queues, [0] * len(queues), [], 1, sender=sender)
        table.offsets.commit(command, ENDS, 0)
        # A sender that commits again and again is not forgotten.
        table.commit(2, sequence=1 + sender, sender=BOB)
    numbers = table.offsets.dump_owned()[5]
    assert len(numbers) == NUMBERS_MAX
    assert numbers[-1] == [BOB, 1, senders]
    table.commit(3, sequence=senders, sender=BOB)
    assert table.at() == 2
    table.commit(1, sequence=1, sender=ALICE)
    assert table.at() == 1


def test_snapshot_of_before_the_numbers_is_read() -> None:
    table = Table()
    table.commit(40, 7)
    committed, owned = table.offsets.dump(), table.offsets.dump_owned()
    table.offsets = Offsets(1000)
    table.offsets.load(committed, owned[:5])
    assert table.offsets.dump_owned() == owned
    assert table.commit(41, sequence=1, queue=2, sender=ALICE) == Changed()


PLAIN = st.tuples(
    st.sampled_from([901, 902]),
    st.integers(1, 5),  # sequence
    st.integers(0, 20),  # offset
    st.booleans(),  # whether the machine restarts before
)


@given(st.lists(PLAIN, max_size=25))
def test_each_number_of_a_sender_counts_once_and_in_order(
    commits: list[tuple[int, int, int, bool]],
) -> None:
    table = Table()
    last: dict[int, int] = {}
    expected = None
    for sender, sequence, offset, is_restarted in commits:
        if is_restarted:
            table.restart()
        assert table.commit(offset, sequence=sequence, sender=sender) == Changed()
        if sequence > last.get(sender, 0):
            last[sender], expected = sequence, offset
        assert table.at() == expected


# Deletions


def forget(
    table: Table, *names: str, since: int, until: int, deletion: int = 50, part: int = 0
) -> Result:
    table.offsets.pass_time(table.now)
    command = ForgetOffsets(list(names), [deletion] * len(names), since, until, part)
    return table.offsets.forget(command, table.now)


def test_deleted_group_leaves_no_offset_and_no_owner() -> None:
    table = Table(offsets_max=3)
    table.commit(40, 7)
    table.commit(9, name="other", queue=2)
    assert reason(table.commit(1, queue=3)) is Reason.BAD_ARGUMENT
    assert forget(table, "g", since=0, until=50) == Changed(50)
    assert (table.at(), table.offsets.epochs, table.at(2, "other")) == (None, {}, 9)
    # There is space for two others, and a plain commit has no owner to ask.
    assert table.commit(1) == table.commit(1, queue=3) == Changed()
    table.restart()
    assert table.offsets.forgotten == 50


def test_commit_of_a_deleted_groups_member_is_fenced_for_a_day() -> None:
    table = Table()
    table.commit(40, 7)
    forget(table, "g", since=0, until=50)
    assert table.commit(41, 7, 1, kept_ms=1000) == Changed([1])
    assert (table.at(), table.offsets.dump(), table.offsets.leases) == (None, [], {})
    table.restart()
    assert table.commit(41, 7, 1) == Changed([1])
    assert table.commit(3, 60) == Changed([])
    assert table.at() == 3
    table.now += FENCE_MS
    assert table.commit(2, 7, name="h") == Changed([])
    assert table.offsets.dump_owned()[3] == []


def test_deletion_that_comes_twice_spares_the_group_that_came_after_it() -> None:
    table = Table()
    table.commit(40)
    forget(table, "g", since=0, until=50)
    table.commit(3)
    assert forget(table, "g", since=0, until=50) == Changed(50)
    assert table.at() == 3


def test_deletion_comes_in_parts() -> None:
    table = Table()
    for name in "abc":
        table.commit(40, name=name)
    assert forget(table, "a", since=0, until=0) == Changed(0)
    table.restart()
    assert forget(table, "b", "c", since=0, until=50, part=1) == Changed(50)
    assert table.offsets.dump() == []


def test_part_of_a_deletion_that_comes_twice_changes_nothing() -> None:
    table = Table()
    forget(table, "a", since=0, until=0)
    table.commit(3, name="a")
    # Another leader had proposed the same part.
    assert forget(table, "a", since=0, until=0) == Changed(0)
    assert table.at(name="a") == 3
    # The next deletions begin with the first part again.
    assert forget(table, since=0, until=50, part=1) == Changed(50)
    assert forget(table, "a", since=50, until=60) == Changed(60)
    assert table.at(name="a") is None


def test_deletion_that_comes_late_spares_what_a_later_group_has_committed() -> None:
    table = Table(offsets_max=4)
    table.commit(40, 7)
    table.commit(41, 7, queue=2)
    table.commit(8, 60, kept_ms=DAY)
    assert forget(table, "g", since=0, until=50) == Changed(50)
    assert (table.at(), table.at(2)) == (8, None)
    assert table.commit(41, 7, 2, kept_ms=DAY) == Changed([1])
    # A kept offset still counts, and its lease still runs.
    assert table.commit(0, 60, queue=3, name="h") == Changed([])
    assert reason(table.commit(0, 60, queue=2, name="h")) is Reason.BAD_ARGUMENT
    table.restart()
    table.now += 2 * DAY
    table.offsets.pass_time(table.now)
    assert table.at() is None


def test_record_of_older_software_takes_all_and_has_no_number() -> None:
    table = Table()
    for name in "ab":
        table.commit(40, 60, name=name)
    for name, until in (("a", 0), ("b", 50)):
        command = ForgetOffsets([name], [50], 0, until)
        table.offsets.forget(command, table.now)
    assert (table.offsets.dump(), table.offsets.forgotten) == ([], 50)


def test_groups_that_are_fenced_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "FENCES_MAX", 2)
    table = Table()
    forget(table, "a", "b", "a", "c", since=0, until=50)
    assert [name for name, *_ in table.offsets.dump_owned()[3]] == ["a", "c"]


def test_timers_of_deleted_groups_do_not_pile_up() -> None:
    table = Table()
    for n in range(5000):
        table.commit(1, name="g", kept_ms=DAY)
        forget(table, "g", since=n, until=n + 1, deletion=n + 1)
    assert len(table.offsets._timers) < 2000
