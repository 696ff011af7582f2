"""The paper's sentences as tests, in its order: Raft (extended version) §5.1 to §5.4, §6, §7.

Each test quotes what it checks and names the section. Nodes run the plain protocol of the paper;
the additions of the thesis are in `test_raft_thesis`.
"""

import pytest

from raftmq.consensus import (
    Change,
    ChangeKind,
    ConfState,
    DropReason,
    HardState,
    MembershipChange,
    Message,
    MessageKind,
    ProposalDropped,
    Role,
    Snapshot,
    SnapshotMeta,
    Transition,
)
from raftmq.log.record import Kind
from tests.consensus.cluster import BASE, Cluster, Node, make_log, make_storage, of_kind

THREE = ConfState((1, 2, 3))
A = MessageKind.APPEND
V = MessageKind.VOTE


def follower(*terms: int, state: HardState | None = None) -> Node:
    return Node(1, make_storage(THREE, terms, state), {})


# §5.1 Raft basics


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_every_role_updates_its_term_to_a_larger_one_and_follows(role: Role) -> None:
    """ "If one server's current term is smaller than the other's, then it updates its current term
    to the larger value. If a candidate or leader discovers that its term is out of date, it
    immediately reverts to follower state." §5.1"""
    cluster = Cluster(3)
    if role is Role.LEADER:
        cluster.elect(1)
    elif role is Role.CANDIDATE:
        cluster.raft(1).campaign()
    assert cluster.raft(1).role is role
    term = cluster.raft(1).term
    cluster[1].step(Message(A, 1, sender=2, term=term + 1))
    assert (cluster.raft(1).term, cluster.raft(1).role) == (term + 1, Role.FOLLOWER)


def test_request_with_a_stale_term_is_rejected() -> None:
    """ "If a server receives a request with a stale term number, it rejects the request." §5.1"""
    node = follower(1, 2)
    node.step(Message(A, 1, sender=2, term=1, log_term=1, index=2, entries=make_log([1, 1])[1:]))
    assert node.log == [(1, 2), (2, 3)]
    assert node.raft.leader == 0


def test_server_starts_as_follower() -> None:
    """ "When servers start up, they begin as followers." §5.2"""
    assert follower().raft.role is Role.FOLLOWER


# §5.2 Leader election


def test_leader_sends_heartbeats_periodically() -> None:
    """ "Leaders send periodic heartbeats (AppendEntries RPCs that carry no log entries) to all
    followers in order to maintain their authority." §5.2"""
    cluster = Cluster(3, heartbeat_ticks=2, election_ticks=10)
    cluster.elect(1)
    cluster.tick(1, 1)
    assert cluster[1].work() == []
    cluster.tick(1, 1)
    assert [one.to for one in of_kind(cluster[1].work(), MessageKind.HEARTBEAT)] == [2, 3]


@pytest.mark.parametrize("was_candidate", [False, True])
def test_election_timeout_starts_an_election_in_the_next_term(was_candidate: bool) -> None:
    """ "To begin an election, a follower increments its current term and transitions to candidate
    state. It then votes for itself and issues RequestVote RPCs in parallel to each of the other
    servers in the cluster." §5.2"""
    node = Node(1, make_storage(THREE), {"draw": lambda n: 0, "election_ticks": 5})
    if was_candidate:
        node.raft.campaign()
        node.work()
    term = node.raft.term
    for _ in range(5):
        node.raft.tick()
    sent = of_kind(node.work(), V)
    assert (node.raft.role, node.raft.term) == (Role.CANDIDATE, term + 1)
    assert node.storage.hard_state[:2] == (term + 1, 1)
    assert [(one.to, one.term) for one in sent] == [(2, term + 1), (3, term + 1)]


@pytest.mark.parametrize(
    ("voters", "granted", "refused", "role"),
    [
        (1, (), (), Role.LEADER),
        (3, (2,), (), Role.LEADER),
        (3, (2, 3), (), Role.LEADER),
        (5, (2, 3), (4, 5), Role.LEADER),
        (5, (2,), (3,), Role.CANDIDATE),
        (3, (), (2, 3), Role.FOLLOWER),
        (5, (2,), (3, 4, 5), Role.FOLLOWER),
    ],
)
def test_candidate_wins_with_votes_of_a_majority(
    voters: int, granted: tuple[int, ...], refused: tuple[int, ...], role: Role
) -> None:
    """ "A candidate wins an election if it receives votes from a majority of the servers in the
    full cluster for the same term." §5.2"""
    node = Node(1, make_storage(ConfState(tuple(range(1, voters + 1)))), {})
    node.raft.campaign()
    node.work()
    kind = MessageKind.VOTE_RESPONSE
    for number in sorted(granted + refused):
        node.step(Message(kind, 1, sender=number, term=2, reject=number in refused))
    assert node.raft.role is role


@pytest.mark.parametrize(
    ("vote", "candidate", "is_granted"),
    [(0, 1, True), (0, 2, True), (2, 2, True), (3, 3, True), (2, 3, False), (3, 2, False)],
)
def test_each_server_votes_for_at_most_one_candidate_in_a_term(
    vote: int, candidate: int, is_granted: bool
) -> None:
    """ "Each server will vote for at most one candidate in a given term, on a
    first-come-first-served basis." §5.2"""
    node = Node(4, make_storage(ConfState((1, 2, 3, 4)), (), HardState(5, vote, BASE)), {})
    (answer,) = node.step(Message(V, 4, sender=candidate, term=5, index=BASE, log_term=1))
    assert answer.reject is not is_granted


def test_vote_survives_a_restart() -> None:
    """Figure 2: currentTerm and votedFor are "updated on stable storage before responding to
    RPCs". §5.2"""
    node = follower()
    (answer,) = node.step(Message(V, 1, sender=2, term=5, index=BASE, log_term=1))
    assert not answer.reject
    node.restart()
    (answer,) = node.step(Message(V, 1, sender=3, term=5, index=9, log_term=4))
    assert answer.reject


@pytest.mark.parametrize("kind", [A, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT])
def test_candidate_returns_to_follower_on_hearing_from_a_leader_of_its_term(
    kind: MessageKind,
) -> None:
    """ "If the leader's term (included in its RPC) is at least as large as the candidate's current
    term, then the candidate recognizes the leader as legitimate and returns to follower state."
    §5.2"""
    node = follower()
    node.raft.campaign()
    node.work()
    node.step(Message(kind, 1, sender=2, term=node.raft.term))
    assert (node.raft.role, node.raft.leader) == (Role.FOLLOWER, 2)


def test_election_timeouts_are_drawn_from_a_fixed_interval() -> None:
    """ "Raft uses randomized election timeouts to ensure that split votes are rare ... election
    timeouts are chosen randomly from a fixed interval." §5.2"""
    waits = set()
    for drawn in range(10):
        node = Node(
            1, make_storage(THREE), {"draw": lambda n, drawn=drawn: drawn, "election_ticks": 10}
        )
        ticks = 0
        while node.raft.role is Role.FOLLOWER:
            node.raft.tick()
            ticks += 1
        waits.add(ticks)
    assert waits == set(range(10, 20))


# §5.3 Log replication


def test_leader_appends_and_sends_in_parallel() -> None:
    """ "The leader appends the command to its log as a new entry, then issues AppendEntries RPCs
    in parallel to each of the other servers to replicate the entry." §5.3"""
    cluster = Cluster(3)
    cluster.elect(1)
    index = cluster.propose(1, b"one", b"two")
    sent = of_kind(cluster[1].work(), A)
    assert cluster[1].storage.last_index() == index + 1
    assert [(one.to, [bytes(r.payload) for r in one.entries]) for one in sent] == [
        (2, [b"one", b"two"]),
        (3, [b"one", b"two"]),
    ]


@pytest.mark.parametrize(
    ("voters", "acks", "is_committed"),
    [(1, 0, True), (3, 0, False), (3, 1, True), (5, 1, False), (5, 2, True), (5, 4, True)],
)
def test_entry_is_committed_once_on_a_majority(voters: int, acks: int, is_committed: bool) -> None:
    """ "A log entry is committed once the leader that created the entry has replicated it on a
    majority of the servers." §5.3"""
    cluster = Cluster(voters)
    cluster.elect(1)
    index = cluster.propose(1, b"x")
    cluster[1].work()
    for number in range(2, 2 + acks):
        kind = MessageKind.APPEND_RESPONSE
        cluster[1].step(Message(kind, 1, sender=number, term=cluster.raft(1).term, index=index))
    assert (cluster.raft(1).commit == index) is is_committed
    assert (cluster[1].payloads == [b"x"]) is is_committed


@pytest.mark.parametrize("terms", [(1,), (1, 1), (1, 2, 2)])
def test_commit_also_commits_all_preceding_entries(terms: tuple[int, ...]) -> None:
    """ "This also commits all preceding entries in the leader's log, including entries created by
    previous leaders." §5.3"""
    cluster = Cluster(3, logs={1: terms})
    cluster.elect(1)
    assert cluster[2].payloads == [b"%d" % term for term in terms]


def test_follower_applies_what_it_learns_to_be_committed_in_log_order() -> None:
    """ "Once a follower learns that a log entry is committed, it applies the entry to its local
    state machine (in log order)." §5.3"""
    node = follower(1, 1)
    node.step(Message(A, 1, sender=2, term=1, log_term=1, index=3, commit=2))
    assert [one.index for one in node.applied] == [2]
    node.step(Message(MessageKind.HEARTBEAT, 1, sender=2, term=1, commit=3))
    assert [one.index for one in node.applied] == [2, 3]


@pytest.mark.parametrize(
    ("index", "log_term", "is_accepted"), [(1, 1, True), (2, 1, True), (3, 2, True),
                                           (3, 3, False), (4, 2, False)]
)  # fmt: skip
def test_follower_rejects_append_when_previous_entry_is_missing(
    index: int, log_term: int, is_accepted: bool
) -> None:
    """ "If the follower does not find an entry in its log with the same index and term, then it
    refuses the new entries." §5.3"""
    node = follower(1, 2)
    (answer,) = node.step(Message(A, 1, sender=2, term=5, log_term=log_term, index=index))
    assert answer.reject is not is_accepted
    assert answer.index == index


@pytest.mark.parametrize(
    ("sent", "before", "expected"),
    [
        ([1, 2, 3], 0, [1, 2, 3]),
        ([1, 3, 3], 1, [1, 3, 3]),
        ([4], 0, [4]),
        ([1], 0, [1, 2, 2]),
        ([1, 2], 1, [1, 2, 2]),
    ],
)
def test_follower_deletes_a_conflicting_entry_and_all_that_follow_it(
    sent: list[int], before: int, expected: list[int]
) -> None:
    """ "To bring a follower's log into consistency with its own, the leader must find the latest
    log entry where the two logs agree, delete any entries in the follower's log after that point,
    and send the follower all of the leader's entries after that point." §5.3 And figure 2: only
    "if an existing entry conflicts with a new one"."""
    node = follower(1, 2, 2)
    log = make_log(sent)
    previous = log[before - 1] if before else None
    node.step(
        Message(A, 1, sender=2, term=5, index=BASE + before,
                log_term=previous.term if previous else 1, entries=log[before:])
    )  # fmt: skip
    assert [term for term, _ in node.log] == expected


# Figure 7: logs that a leader of term 8 may meet.
FIGURE_7 = {
    "a, a missing entry": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b, many missing entries": (1, 1, 1, 4),
    "c, an extra entry": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d, extra entries of a later term": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e, both": (1, 1, 1, 4, 4, 4, 4),
    "f, a long foreign tail": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("case", FIGURE_7)
def test_leader_brings_any_follower_log_of_figure_7_into_line(case: str) -> None:
    """ "In Raft, the leader handles inconsistencies by forcing the followers' logs to duplicate
    its own." §5.3, figure 7"""
    leader_log = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
    cluster = Cluster(3, logs={1: leader_log, 2: FIGURE_7[case], 3: leader_log[:3]})
    # Node 3, far behind, is the vote it needs; the other may know a later term.
    cluster.raft(1).step(Message(MessageKind.HEARTBEAT, 1, sender=2, term=7))
    cluster.elect(1)
    cluster.tick(1, 2)
    cluster.settle()
    assert cluster[2].log == cluster[1].log
    assert cluster[2].storage.records == cluster[1].storage.records


def test_leader_never_overwrites_or_deletes_its_own_entries() -> None:
    """ "A leader never overwrites or deletes entries in its own log." §5.3"""
    cluster = Cluster(3, logs={1: (1, 2, 2), 2: (1, 1, 1, 1), 3: ()})
    cluster.elect(1)
    assert [term for term, _ in cluster[1].log] == [1, 2, 2, 3]


# §5.4 Safety


@pytest.mark.parametrize(
    ("terms", "candidate_terms", "is_granted"),
    [
        ((1,), (1,), True),
        ((1,), (1, 1), True),
        ((1, 1), (1,), False),
        ((1, 1), (2,), True),
        ((2,), (1, 1), False),
        ((1, 2), (1, 1, 1), False),
    ],
)
def test_voter_denies_its_vote_to_a_less_up_to_date_log(
    terms: tuple[int, ...], candidate_terms: tuple[int, ...], is_granted: bool
) -> None:
    """ "The voter denies its vote if its own log is more up-to-date than that of the candidate."
    §5.4.1"""
    node = follower(*terms)
    index, term = BASE + len(candidate_terms), candidate_terms[-1]
    (answer,) = node.step(Message(V, 1, sender=2, term=7, index=index, log_term=term))
    assert answer.reject is not is_granted


def test_only_entries_of_the_current_term_are_committed_by_counting_replicas() -> None:
    """ "Only log entries from the leader's current term are committed by counting replicas; once
    an entry from the current term has been committed in this way, then all prior entries are
    committed indirectly." §5.4.2, figure 8"""
    node = Node(1, make_storage(THREE, (1, 2)), {})
    node.raft.campaign()
    node.work()
    node.step(Message(MessageKind.VOTE_RESPONSE, 1, sender=2, term=3))
    kind = MessageKind.APPEND_RESPONSE
    node.step(Message(kind, 1, sender=2, term=3, index=3))
    assert node.raft.commit == BASE
    node.step(Message(kind, 1, sender=2, term=3, index=4))
    assert node.raft.commit == 4


def test_figure_8_a_majority_holding_an_old_entry_does_not_make_it_final() -> None:
    """Figure 8: the entry of term 2 is on a majority in (c), and is still overwritten in (d)."""
    logs = {1: (1, 2), 2: (1, 2), 3: (1,), 4: (1,), 5: (1, 3)}
    cluster = Cluster(5, logs=logs)
    cluster.cut(1, 2, 3)
    cluster.raft(1).step(Message(MessageKind.HEARTBEAT, 1, sender=5, term=3))
    cluster.raft(1).campaign()
    cluster[3].raft.step(cluster[1].work()[1])
    for message in cluster[3].work():
        cluster[1].step(message)
    cluster[2].step(Message(V, 2, sender=1, term=4, index=3, log_term=2))
    cluster[1].step(Message(MessageKind.VOTE_RESPONSE, 1, sender=2, term=4))
    assert cluster.raft(1).role is Role.LEADER
    # (c): the old entry alone reaches node 3, so it is on 1, 2 and 3; the new one does not.
    log = make_log((1, 2))
    cluster[3].step(Message(A, 3, sender=1, term=4, index=2, log_term=1, entries=log[1:]))
    for number in (2, 3):
        kind = MessageKind.APPEND_RESPONSE
        cluster[1].step(Message(kind, 1, sender=number, term=4, index=3))
    assert cluster.raft(1).commit == BASE
    # (d): node 5 is elected by 3 and 4 and overwrites it.
    cluster.heal()
    cluster.cut(1, 2)
    cluster.messages.clear()
    cluster.raft(5).step(Message(MessageKind.HEARTBEAT, 5, sender=1, term=4))
    cluster.elect(5)
    cluster.tick(5, 1)
    cluster.settle()
    assert cluster[3].log == cluster[5].log == [(1, 2), (3, 3), (5, 4)]


# §6 Cluster membership changes


def add(*nodes: int) -> MembershipChange:
    return MembershipChange(tuple(Change(ChangeKind.ADD_VOTER, node) for node in nodes))


def test_agreement_in_joint_consensus_needs_both_majorities() -> None:
    """ "Agreement (for elections and entry commitment) requires separate majorities from both the
    old and new configurations." §6"""
    cluster = Cluster(3, spare=(4, 5))
    cluster.elect(1)
    change = MembershipChange(add(4, 5).changes, Transition.JOINT_EXPLICIT)
    cluster.raft(1).propose_membership(change, now=0)
    cluster.settle()
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster[4].conf_state == ConfState((1, 2, 3, 4, 5), (), (1, 2, 3))
    cluster.cut(2, 3)  # 1, 4, 5 are a majority of the new five, 1 alone is none of the old three
    index = cluster.propose(1, b"x")
    cluster.settle()
    assert cluster.raft(1).commit < index
    cluster.heal()
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster.raft(1).commit == index


def test_joint_membership_is_left_by_itself() -> None:
    """ "Once C_old,new has been committed, neither C_old nor C_new can make decisions without
    approval of the other ... It is now safe for the leader to create a log entry describing C_new
    and replicate it to the cluster." §6"""
    cluster = Cluster(3, spare=(4, 5))
    cluster.elect(1)
    cluster.raft(1).propose_membership(add(4, 5), now=0)
    cluster.settle()
    cluster.tick(1, 1)
    cluster.settle()
    states = {node.conf_state for node in cluster.nodes.values()}
    assert states == {ConfState((1, 2, 3, 4, 5))}


def test_new_servers_catch_up_as_non_voting_members() -> None:
    """ "The new servers join the cluster as non-voting members (the leader replicates log entries
    to them, but they are not considered for majorities)." §6"""
    cluster = Cluster(3, spare=(4,))
    cluster.elect(1)
    learner = MembershipChange((Change(ChangeKind.ADD_LEARNER, 4),))
    cluster.raft(1).propose_membership(learner, now=0)
    cluster.settle()
    cluster.tick(1, 1)
    cluster.settle()
    index = cluster.propose(1, b"x")
    cluster.settle()
    assert cluster[4].payloads == [b"x"]
    cluster.cut(2, 3)
    cluster.propose(1, b"y")
    cluster.settle()
    assert cluster.raft(1).commit == index


def test_removed_leader_steps_down_once_the_new_membership_is_committed() -> None:
    """ "In this case, the leader steps down (returns to follower state) once it has committed the
    C_new log entry." §6"""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.raft(1).propose_membership(MembershipChange((Change(ChangeKind.REMOVE, 1),)), now=0)
    assert cluster.raft(1).is_leader
    cluster.settle()
    assert cluster.raft(1).role is Role.FOLLOWER
    cluster.elect(2)
    assert cluster[2].conf_state == cluster[3].conf_state == ConfState((2, 3))


def test_second_change_waits_for_the_first() -> None:
    """Thesis §4.1: a leader must not begin a change before the last one is over."""
    cluster = Cluster(3, spare=(4,))
    cluster.elect(1)
    cluster.raft(1).propose_membership(add(4), now=0)
    with pytest.raises(ProposalDropped) as dropped:
        cluster.raft(1).propose_membership(add(5), now=0)
    assert dropped.value.reason is DropReason.CHANGE_PENDING


# §7 Log compaction


def test_follower_that_lacks_discarded_entries_is_sent_a_snapshot() -> None:
    """ "The leader must occasionally send snapshots to followers that lag behind. This happens
    when the leader has already discarded the next log entry that it needs to send to a follower."
    §7"""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"a")
    cluster.settle()
    cluster[1].snapshot()
    cluster.heal()
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster[3].storage.snapshot_state == cluster[1].storage.snapshot_state
    cluster.propose(1, b"b")
    cluster.settle()
    assert cluster[3].payloads == [b"b"]


def test_snapshot_replaces_a_conflicting_log() -> None:
    """ "If the snapshot will contain new information not already in the recipient's log ... the
    follower discards its entire log; it is all superseded by the snapshot." §7"""
    node = follower(1, 1)
    meta = SnapshotMeta(3, 2, THREE, crc=77, timestamp=88)
    (answer,) = node.step(
        Message(MessageKind.SNAPSHOT, 1, sender=2, term=2, snapshot=Snapshot(meta, b"state"))
    )
    assert (answer.kind, answer.index) == (MessageKind.APPEND_RESPONSE, 3)
    assert node.log == []
    assert node.storage.tail(3) == (77, 88)


def test_snapshot_of_a_prefix_keeps_the_entries_that_follow_it() -> None:
    """ "If instead the follower receives a snapshot that describes a prefix of its log (due to
    retransmission or by mistake), then log entries covered by the snapshot are deleted but entries
    following the snapshot are still valid and must be retained." §7"""
    node = follower(1, 1, 1)
    meta = SnapshotMeta(3, 1, THREE)
    node.step(Message(MessageKind.SNAPSHOT, 1, sender=2, term=1, snapshot=Snapshot(meta)))
    assert node.log == [(1, 2), (1, 3), (1, 4)]
    assert node.raft.commit == 3


# §8 Client interaction


def test_new_leader_commits_a_no_op_of_its_term() -> None:
    """ "Raft handles this by having each leader commit a blank no-op entry into the log at the
    start of its term." §8"""
    cluster = Cluster(3, logs={1: (1,)})
    cluster.elect(1)
    assert [(one.kind, one.term) for one in cluster[2].applied] == [(Kind.BATCH, 1), (Kind.NOOP, 2)]
