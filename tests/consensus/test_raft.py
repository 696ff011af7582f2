"""Tests of the public face: proposals, flow control, fetches, asynchronous storage, refusals."""

import pytest

from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    Change,
    ChangeKind,
    ConfState,
    DropReason,
    Fetch,
    MembershipChange,
    MemoryStorage,
    Message,
    MessageKind,
    NotInMemory,
    ProgressState,
    ProposalDropped,
    Raft,
    Role,
    SnapshotTemporarilyUnavailable,
    StepRefusal,
)
from raftmq.consensus.messages import LOCAL_KINDS
from raftmq.log.record import HEADER_BYTES, Kind, Record, decode
from tests.consensus.cluster import BASE, Cluster, make_log, make_raft, make_storage, of_kind

A = MessageKind.APPEND
R = MessageKind.APPEND_RESPONSE
THREE = ConfState((1, 2, 3))


def reason_of(raft: Raft, *payloads: bytes) -> DropReason:
    with pytest.raises(ProposalDropped) as dropped:
        raft.propose([(Kind.BATCH, payload, 1) for payload in payloads], now=0)
    return dropped.value.reason


# Proposals


def test_one_call_appends_consecutive_chained_records_and_sends_one_append() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    first = cluster.propose(1, b"a", b"b", b"c", now=50)
    sent = of_kind(cluster[1].work(), A)
    assert [len(one.entries) for one in sent] == [3, 3]
    records = list(sent[0].entries)
    assert [record.index for record in records] == [first, first + 1, first + 2]
    assert records[1].chain == records[0].crc
    assert all(decode(record.encoded) == record for record in records)


def test_timestamps_never_fall_and_a_no_op_takes_the_last_one() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    for now in (100, 40, 200):
        cluster.propose(1, b"x", now=now)
    cluster.settle()
    cluster.elect(2)
    cluster.propose(2, b"x", now=150)
    cluster.settle()
    assert [one.timestamp for one in cluster[3].applied] == [0, 100, 100, 200, 200, 200]


def test_follower_refuses_proposals_and_names_the_leader() -> None:
    cluster = Cluster(3)
    assert reason_of(cluster.raft(2), b"x") is DropReason.NO_LEADER
    cluster.elect(1)
    with pytest.raises(ProposalDropped) as dropped:
        cluster.propose(2, b"x")
    assert (dropped.value.reason, dropped.value.leader) == (DropReason.NOT_LEADER, 1)


def test_follower_forwards_proposals_if_allowed() -> None:
    cluster = Cluster(3, disable_proposal_forwarding=False)
    cluster.elect(1)
    assert cluster.propose(2, b"x") == 0
    cluster.settle()
    assert cluster[3].payloads == [b"x"]


def test_uncommitted_tail_is_bounded_but_one_proposal_always_fits() -> None:
    size = HEADER_BYTES + 100
    cluster = Cluster(3, uncommitted_bytes_max=2 * size + HEADER_BYTES)
    cluster.elect(1)
    big = cluster.propose(1, bytes(100_000))
    assert reason_of(cluster.raft(1), b"x") is DropReason.TOO_MUCH_UNCOMMITTED
    assert cluster.raft(1).last_index == big
    cluster.settle()
    cluster.propose(1, bytes(100))
    cluster.propose(1, bytes(100))
    assert reason_of(cluster.raft(1), bytes(100)) is DropReason.TOO_MUCH_UNCOMMITTED
    assert cluster.propose(1, b"") > big
    cluster.settle()
    assert cluster.raft(1).status().uncommitted_bytes == 0


def test_proposal_is_all_or_nothing() -> None:
    cluster = Cluster(3, uncommitted_bytes_max=300)
    cluster.elect(1)
    cluster.propose(1, bytes(10))
    last = cluster.raft(1).last_index
    assert reason_of(cluster.raft(1), b"small", bytes(1000)) is DropReason.TOO_MUCH_UNCOMMITTED
    assert cluster.raft(1).last_index == last


def test_impossible_membership_change_is_refused_before_it_enters_the_log() -> None:
    cluster = Cluster(1)
    cluster.elect(1)
    last = cluster.raft(1).last_index
    remove = MembershipChange((Change(ChangeKind.REMOVE, 1),))
    for change, reason in (
        (remove, DropReason.INVALID_CHANGE),
        (MembershipChange(), DropReason.NOT_JOINT),
    ):
        with pytest.raises(ProposalDropped) as dropped:
            cluster.raft(1).propose_membership(change, now=0)
        assert dropped.value.reason is reason
    assert cluster.raft(1).last_index == last


def test_membership_payload_that_is_no_change_becomes_a_no_op() -> None:
    cluster = Cluster(1)
    cluster.elect(1)
    cluster.raft(1).propose([(Kind.MEMBERSHIP, b"\xff", 1)], now=0)
    cluster.settle()
    assert [one.kind for one in cluster[1].applied] == [Kind.NOOP, Kind.NOOP]


# Messages that step refuses


@pytest.mark.parametrize("kind", sorted(LOCAL_KINDS))
def test_local_kinds_are_refused_from_the_network(kind: MessageKind) -> None:
    raft = make_raft(make_storage(THREE))
    assert raft.step(Message(kind, 1, sender=2)) is StepRefusal.LOCAL_MESSAGE


def test_responses_of_strangers_are_refused() -> None:
    raft = make_raft(make_storage(THREE))
    assert raft.step(Message(R, 1, sender=9, term=1)) is StepRefusal.UNKNOWN_PEER


@pytest.mark.parametrize("wrong", [slice(1, None), slice(0, None, 2)])
def test_append_whose_records_do_not_follow_each_other_is_ignored(wrong: slice) -> None:
    raft = make_raft(make_storage(THREE))
    records = make_log([1, 1, 1])[wrong]
    raft.step(Message(A, 1, sender=2, term=1, log_term=1, index=BASE, entries=records))
    assert raft.last_index == BASE


# Flow control


def test_full_window_stops_appends_and_an_answer_to_a_heartbeat_probes() -> None:
    cluster = Cluster(2, inflight_messages_max=2)
    cluster.elect(1)
    for number in range(4):
        cluster.propose(1, b"%d" % number)
    assert len(of_kind(cluster[1].work(), A)) == 2
    term = cluster.raft(1).term
    (probe,) = cluster[1].step(Message(MessageKind.HEARTBEAT_RESPONSE, 1, sender=2, term=term))
    assert (probe.kind, list(probe.entries)) == (A, [])
    sent = cluster[1].step(Message(R, 1, sender=2, term=term, index=3))
    assert [len(one.entries) for one in of_kind(sent, A)] == [2]


def test_append_stays_within_the_message_size() -> None:
    size = HEADER_BYTES + 10
    cluster = Cluster(2, message_bytes_max=2 * size)
    cluster.elect(1)
    cluster.propose(1, *[bytes(10)] * 5)
    assert [len(one.entries) for one in of_kind(cluster[1].work(), A)] == [2]
    term, first = cluster.raft(1).term, BASE + 2
    sent = cluster[1].step(Message(R, 1, sender=2, term=term, index=first + 1))
    assert [len(one.entries) for one in of_kind(sent, A) if one.entries] == [2, 1]


def test_unreachable_peer_is_probed_until_it_answers() -> None:
    cluster = Cluster(2)
    cluster.elect(1)
    cluster.raft(1).report_unreachable(2)
    assert cluster.raft(1).status().progress[2].state is ProgressState.PROBE
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster.raft(1).status().progress[2].state is ProgressState.REPLICATE


def test_failed_snapshot_is_sent_again_after_a_heartbeat() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"x")
    cluster.settle()
    cluster[1].snapshot()
    cluster.heal()
    cluster.tick(1, 1)
    lost: list[Message] = []
    while not lost:
        messages = cluster[1].work()
        lost = of_kind(messages, MessageKind.SNAPSHOT)
        for message in messages:
            if message not in lost:
                for answer in cluster[message.to].step(message):
                    cluster[1].raft.step(answer)
    assert [one.to for one in lost] == [3]
    cluster.raft(1).report_snapshot(3, ok=False)
    assert cluster[1].work() == []
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster.raft(3).last_index == cluster.raft(1).last_index


def test_snapshot_that_is_not_ready_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"x")
    cluster.settle()
    cluster[1].snapshot()
    cluster.heal()

    def unavailable(storage: MemoryStorage) -> None:
        raise SnapshotTemporarilyUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStorage, "snapshot", unavailable)
        cluster.tick(1, 1)
        cluster.settle()
        assert cluster.raft(3).commit < cluster.raft(1).commit
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster.raft(3).commit == cluster.raft(1).commit


def test_commit_rides_on_the_next_records_or_heartbeat_if_it_is_not_announced() -> None:
    cluster = Cluster(3, announce_commit=False)
    cluster.elect(1)
    index = cluster.propose(1, b"x")
    cluster.settle()
    assert cluster.raft(1).commit == index
    assert cluster.raft(2).commit < index
    cluster.propose(1, b"y")
    cluster.settle()
    assert cluster.raft(2).commit == index
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster[2].payloads == cluster[3].payloads == [b"x", b"y"]


# Records that are on disk only


class ColdStorage(MemoryStorage):
    """Raises NotInMemory until warmed."""

    is_cold = False

    def entries(self, low: int, high: int, bytes_max: int) -> list[Record]:
        if self.is_cold:
            raise NotInMemory(low)
        return super().entries(low, high, bytes_max)


def test_missing_records_are_asked_for_once_and_sent_when_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.consensus.cluster.MemoryStorage", ColdStorage)
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"x", b"y")
    cluster.settle()
    cluster.propose(1, b"z")
    cluster.settle()
    cluster.heal()
    storage = cluster[1].storage
    assert isinstance(storage, ColdStorage)
    storage.is_cold = True
    raft, term = cluster.raft(1), cluster.raft(1).term
    raft.step(Message(R, 1, sender=3, term=term, index=5, reject=True, hint=2, log_term=term))
    fetches = []
    for _ in range(3):
        raft.step(Message(MessageKind.HEARTBEAT_RESPONSE, 1, sender=3, term=term))
        fetches += raft.ready().fetches if raft.has_ready() else []
        raft.advance()
    assert fetches == [Fetch(3, 3, 6)]
    raft.entries_fetched(3)  # still cold: it says so again
    assert raft.ready().fetches == [Fetch(3, 3, 6)]
    raft.advance()
    storage.is_cold = False
    raft.entries_fetched(3)
    cluster.settle()
    assert cluster[3].payloads == [b"x", b"y", b"z"]


def test_records_to_apply_are_fetched_first() -> None:
    storage = ColdStorage()
    storage.install(make_storage(THREE).snapshot_state)
    storage.append(make_storage(THREE, (1, 1)).records)
    storage.hard_state = storage.hard_state._replace(term=1, commit=3)
    storage.is_cold = True
    raft = make_raft(storage)
    assert raft.ready().fetches == [Fetch(1, 2, 4)]
    raft.advance()
    assert not raft.has_ready()
    raft.campaign()
    assert raft.role is Role.FOLLOWER, "there may be a membership change among them"
    storage.is_cold = False
    raft.entries_fetched(1)
    assert [record.index for record in raft.ready().committed] == [2, 3]


# Asynchronous storage


def asynchronous() -> tuple[Raft, MemoryStorage]:
    storage = make_storage(THREE)
    raft = make_raft(storage, async_storage_writes=True)
    raft.campaign()
    _finish(raft, storage)
    raft.step(Message(MessageKind.VOTE_RESPONSE, 1, sender=2, term=2))
    _finish(raft, storage)
    for peer in (2, 3):
        raft.step(Message(R, 1, sender=peer, term=2, index=2))
        _finish(raft, storage)
    return raft, storage


def _finish(raft: Raft, storage: MemoryStorage) -> None:
    while raft.has_ready():
        for message in raft.ready().messages:
            storage.append(message.entries if message.to == APPEND_THREAD else [])
            if message.to in (APPEND_THREAD, APPLY_THREAD):
                for response in message.responses:
                    raft.step(response)


def test_appends_leave_at_once_and_promises_wait_for_the_disk() -> None:
    raft, storage = asynchronous()
    index = raft.propose([(Kind.BATCH, b"x", 1)], now=0)
    ready = raft.ready()
    kinds = [(one.kind, one.to) for one in ready.messages]
    assert kinds == [(A, 2), (A, 3), (MessageKind.STORAGE_APPEND, APPEND_THREAD)]
    write = ready.messages[-1]
    assert [one.kind for one in write.responses] == [R, MessageKind.STORAGE_APPEND_RESPONSE]
    # One follower is not enough while our own disk still writes...
    raft.step(Message(R, 1, sender=2, term=2, index=index))
    assert raft.commit < index
    # ...and two followers are, even so; but it is not applied before it is on our own disk.
    raft.step(Message(R, 1, sender=3, term=2, index=index))
    assert raft.commit == index
    assert raft.ready().committed == []
    storage.append(write.entries)
    for response in write.responses:
        raft.step(response)
    assert [one.index for one in raft.ready().committed] == [index]


def test_several_writes_may_be_under_way() -> None:
    raft, _ = asynchronous()
    writes = []
    for payload in (b"a", b"b", b"c"):
        raft.propose([(Kind.BATCH, payload, 1)], now=0)
        writes += [one for one in raft.ready().messages if one.to == APPEND_THREAD]
    assert [[bytes(r.payload) for r in one.entries] for one in writes] == [[b"a"], [b"b"], [b"c"]]


def test_advance_has_no_place_with_asynchronous_storage() -> None:
    raft, _ = asynchronous()
    with pytest.raises(AssertionError, match="responses replace advance"):
        raft.advance()


def test_follower_acknowledges_only_through_the_append_thread() -> None:
    storage = make_storage(THREE)
    raft = make_raft(storage, async_storage_writes=True)
    leader, _ = asynchronous()
    leader.propose([(Kind.BATCH, b"x", 1)], now=0)
    append = next(one for one in leader.ready().messages if one.kind is A)
    bare = Message(A, 1, sender=2, term=2, log_term=1, index=1, entries=_no_op(leader))
    raft.step(bare)
    ready = raft.ready()
    assert [one.to for one in ready.messages] == [APPEND_THREAD]
    assert [one.to for one in ready.messages[0].responses] == [2, 1]
    assert append.index == 2


def _no_op(leader: Raft) -> list[Record]:
    records, _ = leader._core.log.entries(2, 0)
    return records


# Facts


def test_status_shows_followers_only_on_the_leader() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    status = cluster.raft(1).status()
    assert (status.role, status.leader, sorted(status.progress)) == (Role.LEADER, 1, [1, 2, 3])
    assert status.progress[2].match == status.last_index
    assert cluster.raft(2).status().progress == {}


def test_ready_hands_out_everything_once() -> None:
    raft = make_raft(make_storage(THREE))
    raft.campaign()
    assert raft.has_ready()
    raft.ready()
    assert not raft.has_ready()
    with pytest.raises(AssertionError, match="without advance"):
        raft.ready()
