"""Unit tests of the parts below the roles: quorum, windows, progress, log, membership, config."""

from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.consensus import (
    Change,
    ChangeKind,
    Compacted,
    Config,
    ConfState,
    InvalidChange,
    Membership,
    MembershipChange,
    MemoryStorage,
    ReadMode,
    Snapshot,
    SnapshotMeta,
    Transition,
    decode_change,
    encode_change,
)
from raftmq.consensus.changes import CONTEXT_BYTES_MAX
from raftmq.consensus.config import record_bytes
from raftmq.consensus.core import Core
from raftmq.consensus.log import RaftLog
from raftmq.consensus.membership import Changer, describe, is_member
from raftmq.consensus.progress import PROBE, REPLICATE, SNAPSHOT, Inflights, Progress
from raftmq.consensus.quorum import (
    INFINITE,
    VoteResult,
    joint_committed_index,
    joint_vote_result,
    majority_index,
    vote_result,
)
from raftmq.consensus.reads import ReadQueue
from raftmq.consensus.storage import fit
from raftmq.errors import CorruptRecord
from tests.consensus.cluster import make_log, make_raft, make_storage

VOTERS = st.sets(st.integers(1, 9), max_size=7)
MATCHED = st.dictionaries(st.integers(1, 9), st.integers(0, 50))


# Quorum


@given(VOTERS, MATCHED)
def test_committed_index_is_the_highest_that_a_majority_has(
    voters: set[int], matched: dict[int, int]
) -> None:
    reached = [matched.get(voter, 0) for voter in voters]
    index = majority_index(reached)
    if not voters:
        assert index == INFINITE
        return
    assert 2 * sum(one >= index for one in reached) > len(voters)
    assert 2 * sum(one >= index + 1 for one in reached) <= len(voters)


@given(VOTERS, VOTERS, MATCHED)
def test_joint_commit_is_symmetric_and_bounded_by_both_halves(
    one: set[int], other: set[int], matched: dict[int, int]
) -> None:
    halves = [[matched.get(voter, 0) for voter in voters] for voters in (one, other)]
    joint = joint_committed_index(halves[0], halves[1])
    assert joint == joint_committed_index(halves[1], halves[0])
    assert joint == min(majority_index(half) for half in halves)


@given(VOTERS, st.dictionaries(st.integers(1, 9), st.booleans()))
def test_vote_is_pending_only_while_missing_votes_decide(
    voters: set[int], votes: dict[int, bool]
) -> None:
    result = vote_result(voters, votes)
    all_yes = vote_result(voters, dict.fromkeys(voters, True) | votes)
    all_no = vote_result(voters, dict.fromkeys(voters, False) | votes)
    assert (result is VoteResult.PENDING) == (all_yes is not all_no)


def test_joint_election_is_lost_as_soon_as_one_half_is() -> None:
    assert joint_vote_result({1}, {2, 3}, {1: False}) is VoteResult.LOST
    assert joint_vote_result({1}, {2, 3}, {1: True}) is VoteResult.PENDING
    assert joint_vote_result(set(), {2}, {2: True}) is VoteResult.WON


# Windows and progress


def test_window_is_full_by_messages_and_by_bytes() -> None:
    by_count, by_bytes = Inflights(2, 10**9), Inflights(100, 50)
    for window, sizes in ((by_count, (1, 1)), (by_bytes, (49, 1))):
        for index, size in enumerate(sizes):
            assert not window.is_full()
            window.add(index + 1, size)
        assert window.is_full()


def test_window_frees_all_that_ends_at_or_below_an_index() -> None:
    window = Inflights(10, 10**9)
    for index in (3, 5, 8):
        window.add(index, 10)
    window.free_to(6)
    assert (len(window), window.bytes) == (1, 10)
    window.free_to(2)
    assert len(window) == 1
    window.clear()
    assert (len(window), window.bytes) == (0, 0)


def progress(match: int = 5, following: int = 9) -> Progress:
    return Progress(match=match, next=following, inflights=Inflights(2, 10**9))


def test_probe_sends_one_append_with_records_and_then_waits() -> None:
    one = progress()
    one.sent(0, 0)
    after_empty = one.is_paused
    one.sent(1, 10)
    assert (after_empty, one.is_paused, one.next) == (False, True, 9)


def test_replicate_moves_next_with_each_append_until_the_window_is_full() -> None:
    one = progress()
    one.become_replicate()
    assert one.next == 6
    one.sent(3, 10)
    assert (one.next, one.is_paused) == (9, False)
    one.sent(1, 10)
    assert (one.next, one.is_paused) == (10, True)
    assert one.matched(8)
    assert (one.match, one.is_paused) == (8, False)


@pytest.mark.parametrize(
    ("state", "rejected", "hint", "is_news", "following"),
    [
        (REPLICATE, 5, 0, False, 9),
        (REPLICATE, 8, 7, True, 6),
        (PROBE, 7, 6, False, 9),
        (PROBE, 8, 6, True, 7),
        (PROBE, 8, 3, True, 6),
        (PROBE, 8, 20, True, 8),
    ],
)
def test_rejection_moves_next_back_unless_it_is_stale(
    state: Any, rejected: int, hint: int, is_news: bool, following: int
) -> None:
    one = progress()
    one.state = state
    assert one.rejected(rejected, hint) is is_news
    assert one.next == following
    assert one.match < one.next


@pytest.mark.parametrize("state", [PROBE, REPLICATE])
def test_rejection_of_what_was_acknowledged_is_not_answered_at_once(state: Any) -> None:
    """A follower's disk lost a synced write: the same append went back and forth, 25,000 times in
    250 ms of the core simulator (seed 64 with `kill`, `cut-tail`, `duplicate`)."""
    one = progress(match=5, following=6)
    one.state = state
    assert not one.rejected(5, 4)
    assert one.next == 6


def test_probe_after_a_snapshot_starts_behind_it() -> None:
    one = progress()
    one.become_snapshot(20)
    assert (one.state, one.is_paused, one.next) == (SNAPSHOT, True, 21)
    one.become_probe()
    assert (one.next, one.pending_snapshot) == (21, 0)
    one.become_snapshot(20)
    one.pending_snapshot = 0  # it failed
    one.become_probe()
    assert one.next == 6


def test_commit_is_sent_eagerly_only_if_it_moves_the_follower() -> None:
    one = progress()
    assert one.may_bump_commit(3)
    one.sent_commit = 3
    assert not one.may_bump_commit(3)
    assert one.may_bump_commit(4)
    one.sent_commit = 8
    assert not one.may_bump_commit(100)


# The log


def raft_log(*terms: int, bytes_max: int = 2**40) -> RaftLog:
    storage = make_storage(ConfState((1,)), terms)
    return RaftLog(
        storage, committed_bytes_max=bytes_max, measure=record_bytes, note=lambda *event: None
    )


def test_up_to_date_compares_last_term_then_length() -> None:
    log = raft_log(1, 3)
    facts = [(3, 3, True), (4, 3, True), (2, 3, False), (2, 4, True), (99, 2, False)]
    assert [log.is_up_to_date(index, term) for index, term, _ in facts] == [f[2] for f in facts]


def test_unstable_records_supersede_stored_ones() -> None:
    log = raft_log(1, 1, 1)
    new = make_log([1, 2, 2])[1:]
    log.append(new)
    assert [log.term(index) for index in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, None]
    records, weight = log.entries(2, 2**40)
    assert [record.term for record in records] == [1, 2, 2]
    assert weight == record_bytes(records)
    assert log.unstable.new_records() == new


def test_acknowledgement_of_superseded_records_does_not_count() -> None:
    """The ABA problem of `ready`: the term tells which write it was."""
    log = raft_log(1)
    log.append(make_log([1, 2])[1:])
    log.unstable.accept()
    log.append(make_log([1, 3])[1:])
    log.unstable.stable_to(3, 2)
    assert len(log.unstable.records) == 1
    log.unstable.accept()
    log.unstable.stable_to(3, 3)
    assert log.unstable.records == []
    assert log.unstable.offset == 4


def test_committed_records_are_never_replaced() -> None:
    log = raft_log(1, 1)
    log.commit_to(3)
    with pytest.raises(AssertionError, match="committed"):
        log.append(make_log([1, 2])[1:])


def test_record_that_does_not_continue_the_chain_is_a_bug() -> None:
    log = raft_log(1, 1)
    foreign = make_log([1, 1, 1], salt=b"other")[2:]
    with pytest.raises(AssertionError, match="chain"):
        log.append(foreign)


def test_delayed_append_that_holds_nothing_new_does_not_shorten_the_log() -> None:
    log = raft_log(1, 1, 1)
    assert log.try_append(1, 1, make_log([1]), 0) == 2
    assert log.last_index == 4


def test_commit_of_an_append_stops_at_what_it_covers() -> None:
    log = raft_log(1, 1, 1)
    log.try_append(1, 1, make_log([1]), 9)
    assert log.committed == 2


@pytest.mark.parametrize(
    ("index", "term", "guess"),
    [(6, 4, (6, 4)), (6, 3, (4, 2)), (6, 1, (2, 1)), (9, 9, (9, 0)), (6, 0, (0, 0))],
)
def test_conflict_guess_skips_higher_terms(index: int, term: int, guess: tuple[int, int]) -> None:
    log = raft_log(1, 2, 2, 4, 4)
    assert log.guess_conflict(index, term) == guess


def test_applying_pauses_at_its_byte_limit_until_something_is_applied() -> None:
    log = raft_log(1, 1, 1, bytes_max=1)
    log.commit_to(4)
    first = log.take_committed(allow_unstable=True)
    assert [record.index for record in first] == [2]
    assert not log.has_committed(allow_unstable=True)
    log.applied_to(2)
    assert [one.index for one in log.take_committed(allow_unstable=True)] == [3]


def test_only_stored_records_are_applied_with_asynchronous_writes() -> None:
    log = raft_log(1)
    log.append(make_log([1, 1])[1:])
    log.commit_to(3)
    assert log.appliable_index(allow_unstable=False) == 2
    assert log.appliable_index(allow_unstable=True) == 3


def test_fit_takes_at_least_one_record() -> None:
    records = make_log([1, 1, 1])
    size = record_bytes(records[:1])
    for limit, count in ((0, 1), (size, 1), (2 * size, 2), (3 * size - 1, 2), (3 * size, 3)):
        taken, weight = fit(records, limit, record_bytes)
        assert (len(taken), weight) == (count, count * size)


def test_memory_storage_compacts_and_refuses_what_is_gone() -> None:
    storage: MemoryStorage = make_storage(ConfState((1,)), (1, 2, 3))
    crc, _ = storage.tail(3)
    storage.compact(3)
    assert (storage.first_index(), storage.last_index(), storage.term(3)) == (4, 4, 2)
    assert storage.tail(3)[0] == crc
    with pytest.raises(Compacted):
        storage.term(2)
    with pytest.raises(Compacted):
        storage.tail(2)
    with pytest.raises(Compacted):
        storage.entries(3, 4, 0)


# Reads


def test_read_grants_all_that_came_before() -> None:
    queue = ReadQueue()
    for index, context in enumerate((b"a", b"b", b"c")):
        queue.add(1, index=index, context=context)
    queue.add(1, index=9, context=b"b")
    assert queue.newest_context == b"c"
    assert queue.echo(2, b"b") == {2: True}
    assert queue.echo(2, b"zzz") == {}
    assert [(one.context, one.index) for one in queue.grant_to(b"b")] == [(b"a", 0), (b"b", 1)]
    assert queue.grant_to(b"b") == []
    assert len(queue) == 1


# Membership


def changer(state: ConfState = ConfState()) -> Changer:  # noqa: B008 - a constant
    empty = Changer(Membership(), {}, 1, inflight_messages_max=1, inflight_bytes_max=1)
    empty.membership, empty.members = empty.restore(state)
    return empty


STATES = [
    ConfState(),
    ConfState((1, 2, 3)),
    ConfState((1, 2, 3), (4, 5)),
    ConfState((1, 2), (), (1, 2, 3), (3,)),
    ConfState((1, 4), (5,), (1, 2, 3), (2,), True),
]


@pytest.mark.parametrize("state", STATES)
def test_membership_restores_from_its_ids(state: ConfState) -> None:
    assert changer(state).membership.conf_state() == state


def test_membership_knows_its_members() -> None:
    assert [is_member(STATES[4], node) for node in (1, 2, 4, 5, 6)] == [True] * 4 + [False]
    assert describe(changer(STATES[4]).membership) == (
        "voters=(1 4)&&(1 2 3) learners=(5) learners_next=(2) autoleave"
    )


def test_refused_change_leaves_everything_as_it_was() -> None:
    one = changer(ConfState((1, 2, 3)))
    before = one.membership, dict(one.members)
    removes = [Change(ChangeKind.REMOVE, node) for node in (1, 2, 3)]
    for changes in (removes, removes[:2]):
        with pytest.raises(InvalidChange):
            one.simple(changes)
    with pytest.raises(InvalidChange):
        one.enter_joint(removes, auto_leave=True)
    with pytest.raises(InvalidChange):
        one.leave_joint()
    assert (one.membership, dict(one.members)) == before


CHANGES = st.builds(
    MembershipChange,
    st.lists(
        st.builds(Change, st.sampled_from(list(ChangeKind)), st.integers(0, 2**63)), max_size=5
    ).map(tuple),
    st.sampled_from(list(Transition)),
    st.binary(max_size=40),
)


@given(CHANGES)
def test_change_survives_its_encoding(change: MembershipChange) -> None:
    assert decode_change(encode_change(change)) == change


@given(st.binary(max_size=60))
def test_random_bytes_are_a_change_or_a_typed_error(payload: bytes) -> None:
    try:
        change = decode_change(payload)
    except CorruptRecord:
        return
    assert encode_change(change) == payload


@pytest.mark.parametrize(
    "payload",
    [
        encode_change(MembershipChange((Change(ChangeKind.REMOVE, 1),))) + b"\0",
        cbor2.dumps([0, [[9, 1]], b""]),
        cbor2.dumps([7, [], b""]),
        cbor2.dumps([0, [], b""]),
        cbor2.dumps([0, [[0, "1"]], b""]),
        cbor2.dumps([0, [[0, 1]], "text"]),
        cbor2.dumps([0, [[0, 1]] * 65, b""]),
        cbor2.dumps([0, [[0, 1]], bytes(CONTEXT_BYTES_MAX + 1)]),
        cbor2.dumps({}),
        b"\xff",
    ],
)
def test_damaged_change_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_change(payload)


# Config


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ({"id": 0}, ["id"]),
        ({"id": 2**63}, ["id"]),
        ({"heartbeat_ticks": 0}, ["heartbeat_ticks"]),
        ({"heartbeat_ticks": 5, "election_ticks": 5}, ["election_ticks", "heartbeat_ticks"]),
        ({"applied": -1}, ["applied"]),
        ({"inflight_messages_max": 0}, ["inflight_messages_max"]),
        ({"check_quorum": False, "read_mode": ReadMode.LEASE}, ["read_mode", "check_quorum"]),
        ({"uncommitted_bytes_max": 0}, ["uncommitted_bytes_max"]),
        ({"committed_bytes_max": -1}, ["committed_bytes_max"]),
        ({"message_bytes_max": -1}, ["message_bytes_max"]),
        ({"inflight_bytes_max": 9, "message_bytes_max": 10}, ["inflight_bytes_max", "message_by"]),
    ],
)
def test_config_names_the_fields_in_conflict(fault: dict[str, Any], names: list[str]) -> None:
    Config(id=1).validate()
    with pytest.raises(ValueError, match=".*".join(names)):
        replace(Config(id=1), **fault).validate()


def test_founding_membership_needs_a_snapshot_under_it() -> None:
    storage = MemoryStorage()
    storage.install(Snapshot(SnapshotMeta(0, 0, ConfState((1,)))))
    with pytest.raises(ValueError, match="founded by a snapshot"):
        make_raft(storage)
    make_raft(make_storage(ConfState((1,))))


def stamps(core: Core, *times: int) -> list[int]:
    """The stamps of records appended at these times, one after the other."""
    found = []
    for now in times:
        found.append(core.stamp(now))
        core.log.last_timestamp = found[-1]
    return found


def test_time_goes_on_at_half_the_pace_while_the_log_is_ahead_of_the_clock() -> None:
    core = Core(Config(id=1), MemoryStorage())
    assert stamps(core, 1000, 1010) == [1000, 1010]
    # The log's last timestamp is far ahead: from another leader's clock.
    core.log.last_timestamp = 10_000
    assert stamps(core, 1020, 1120, 1121, 1320) == [10_000, 10_050, 10_050, 10_150]
    # Records without a time of their own, as a new leader's first, change nothing.
    assert stamps(core, 0, 1420, 1520) == [10_150, 10_150, 10_200]
    # Set back again.
    assert stamps(core, 500, 600) == [10_200, 10_250]
    # The clock has caught up.
    assert stamps(core, 20_600, 20_601) == [20_600, 20_601]


def test_time_goes_on_after_another_leader_has_taken_it_further_ahead() -> None:
    core = Core(Config(id=1), MemoryStorage())
    core.log.last_timestamp = 10_000
    assert stamps(core, 1000, 1100) == [10_000, 10_050]
    # Meanwhile a leader whose clock is further ahead led.
    core.log.last_timestamp = 90_000
    assert stamps(core, 1200, 1300) == [90_000, 90_050]
