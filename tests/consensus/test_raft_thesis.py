"""Additions of Ongaro's thesis to the paper, as tests: §3.10, §4.2, §6.2, §6.4, §9.6."""

from typing import Any

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
    ReadMode,
    Role,
)
from tests.consensus.cluster import BASE, Cluster, Node, make_storage, of_kind

FULL: dict[str, Any] = {
    "pre_vote": True,
    "check_quorum": True,
    "election_ticks": 5,
    "draw": lambda n: 0,
}


# §3.10 Leadership transfer extension


def test_transfer_stops_proposals_until_it_is_done() -> None:
    """ "The prior leader stops accepting new client requests." §3.10"""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.raft(1).transfer_leadership(2)
    with pytest.raises(ProposalDropped) as dropped:
        cluster.propose(1, b"x")
    assert dropped.value.reason is DropReason.TRANSFERRING
    cluster.settle()
    assert cluster.leaders() == [2]


def test_transfer_brings_the_target_up_to_date_first() -> None:
    """ "The prior leader fully updates the target server's log to match its own log, using the
    normal log replication mechanism." §3.10"""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(2)
    cluster.propose(1, b"x")
    cluster.settle()
    cluster.heal()
    cluster.raft(1).transfer_leadership(2)
    assert of_kind(cluster[1].work(), MessageKind.TIMEOUT_NOW) == []
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster.leaders() == [2]
    assert cluster[2].payloads == [b"x"]


def test_timeout_now_acts_like_an_election_timeout_without_pre_vote() -> None:
    """ "This request has the same effect as the target server's election timer firing: the target
    server starts a new election." §3.10"""
    cluster = Cluster(3, **FULL)
    cluster.elect(1)
    sent = cluster[2].step(Message(MessageKind.TIMEOUT_NOW, 2, sender=1, term=cluster.raft(2).term))
    assert cluster.raft(2).role is Role.CANDIDATE
    assert {one.kind for one in sent} == {MessageKind.VOTE}
    # The others hear from a leader, and listen all the same: the leader itself asked.
    for message in sent:
        cluster.raft(message.to).step(message)
    cluster.settle()
    assert cluster.leaders() == [2]


def test_transfer_that_is_declined_is_over_at_once() -> None:
    """ "Aborts the transfer and resumes accepting client requests." §3.10; here without waiting for
    the election timeout."""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.raft(1).transfer_leadership(2)
    (asked,) = of_kind(cluster[1].work(), MessageKind.TIMEOUT_NOW)
    # Its shell knows why it must not lead.
    cluster.raft(2).decline(asked)
    (answer,) = cluster[2].work()
    cluster.raft(1).step(answer)
    cluster.propose(1, b"x")
    cluster.settle()
    assert cluster.leaders() == [1]
    assert cluster[2].payloads == [b"x"]
    # A decline that comes late ends no newer transfer, and does not make its receiver campaign.
    cluster.raft(1).transfer_leadership(3)
    cluster.raft(1).step(answer)
    with pytest.raises(ProposalDropped):
        cluster.propose(1, b"y")
    cluster.settle()
    assert cluster.leaders() == [3]
    cluster.raft(1).step(answer)
    assert cluster.raft(1).role is Role.FOLLOWER


def test_transfer_is_given_up_after_an_election_timeout() -> None:
    """ "If leadership transfer does not complete after about an election timeout, the prior leader
    aborts the transfer and resumes accepting client requests." §3.10"""
    cluster = Cluster(3, election_ticks=5)
    cluster.elect(1)
    cluster.cut(2)
    cluster.raft(1).transfer_leadership(2)
    cluster.settle()
    cluster.tick(1, 5)
    assert cluster.raft(1).status().transferee == 0
    assert cluster.propose(1, b"x") > 0


# §4.2.1 Catching up new servers; §4.2.2 Removing the current leader


def test_learner_neither_campaigns_nor_counts() -> None:
    """ "This server is not yet counted towards majorities." §4.2.1"""
    cluster = Cluster(1, learners=(2,))
    cluster.elect(1)
    cluster.raft(2).campaign()
    assert cluster.raft(2).role is Role.FOLLOWER
    cluster.cut(2)
    index = cluster.propose(1, b"x")
    cluster.settle()
    assert cluster.raft(1).commit == index


def test_learner_that_is_asked_to_vote_does() -> None:
    """It may have been promoted without knowing yet: its vote may be the one that is needed."""
    cluster = Cluster(2, learners=(3,))
    message = Message(MessageKind.VOTE, 3, sender=1, term=9, index=1, log_term=1)
    (answer,) = cluster[3].step(message)
    assert (answer.kind, answer.reject) == (MessageKind.VOTE_RESPONSE, False)


# §4.2.3 Disruptive servers


def test_server_that_hears_from_a_leader_ignores_candidates() -> None:
    """ "If a server receives a RequestVote request within the minimum election timeout of hearing
    from a current leader, it does not update its term or grant its vote." §4.2.3"""
    cluster = Cluster(3, **FULL)
    cluster.elect(1)
    term = cluster.raft(2).term
    request = Message(MessageKind.VOTE, 2, sender=3, term=term + 5, index=9, log_term=9)
    assert cluster[2].step(request) == []
    assert cluster.raft(2).term == term
    cluster.tick(2, 5)
    cluster[2].work()
    (answer,) = of_kind(cluster[2].step(request), MessageKind.VOTE_RESPONSE)
    assert not answer.reject


def test_removed_server_does_not_disturb_the_others() -> None:
    """ "Servers in C_old that are not in C_new ... will time out and start new elections" - which
    must not unseat the leader. §4.2.3"""
    cluster = Cluster(3, **FULL)
    cluster.elect(1)
    cluster.cut(3)
    remove = MembershipChange((Change(ChangeKind.REMOVE, 3),))
    cluster.raft(1).propose_membership(remove, now=0)
    cluster.settle()
    cluster.heal()
    term = cluster.raft(1).term
    for _ in range(4):
        cluster.tick(3, 5)
        cluster.tick(1, 1)
        cluster.settle()
    assert cluster.leaders() == [1]
    assert cluster.raft(1).term == term


# §6.2 Routing requests to the leader (CheckQuorum)


def test_leader_steps_down_if_no_majority_answers_within_an_election_timeout() -> None:
    """ "A leader in Raft steps down if an election timeout elapses without a successful round of
    heartbeats to a majority of its cluster." §6.2"""
    cluster = Cluster(3, **FULL)
    cluster.elect(1)
    cluster.cut(1)
    for _ in range(10):
        cluster.tick(1, 1)
        cluster.settle()
    assert cluster.raft(1).role is not Role.LEADER


# §6.4 Processing read-only queries more efficiently


def test_read_is_granted_after_a_round_of_heartbeats() -> None:
    """ "It issues a new round of heartbeats and waits for their acknowledgments from a majority of
    the cluster." §6.4"""
    cluster = Cluster(3)
    cluster.elect(1)
    index = cluster.propose(1, b"x")
    cluster.settle()
    cluster.raft(1).read_index(b"r")
    sent = cluster[1].work()
    assert [(one.kind, one.context) for one in sent] == [(MessageKind.HEARTBEAT, b"r")] * 2
    assert cluster[1].reads == []
    for message in cluster[2].step(sent[0]):
        cluster[1].step(message)
    assert [(one.index, one.context) for one in cluster[1].reads] == [(index, b"r")]


def test_read_of_a_deposed_leader_is_never_granted() -> None:
    """ "This leader knows that there could not have existed a leader for a greater term at the
    moment it sent the heartbeats" - and without an answer it knows nothing. §6.4"""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(1)
    cluster.elect(2)
    cluster.propose(2, b"x")
    cluster.settle()
    cluster.raft(1).read_index(b"r")
    cluster.settle()
    cluster.heal()
    cluster.tick(2, 1)
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster[1].reads == []


def test_new_leader_grants_no_read_before_it_committed_in_its_term() -> None:
    """ "If the leader has not yet marked an entry from its current term committed, it waits until
    it has done so." §6.4"""
    cluster = Cluster(3)
    cluster.raft(1).campaign()
    for message in cluster[1].work():
        for answer in cluster[message.to].step(message):
            cluster.raft(1).step(answer)
    assert cluster.raft(1).is_leader
    cluster.raft(1).read_index(b"r")
    held = cluster[1].work()
    assert of_kind(held, MessageKind.HEARTBEAT) == []
    cluster.messages += held
    cluster.settle()
    assert [one.context for one in cluster[1].reads] == [b"r"]


def test_follower_asks_the_leader_for_a_read_index() -> None:
    """ "Followers can also help offload the processing of read-only queries ... the follower
    could issue a request to the leader that just asks for a current readIndex." §6.4"""
    cluster = Cluster(3)
    cluster.elect(1)
    index = cluster.propose(1, b"x")
    cluster.settle()
    cluster.raft(3).read_index(b"far")
    cluster.settle()
    assert [(one.index, one.context) for one in cluster[3].reads] == [(index, b"far")]


def test_reads_are_granted_in_order_by_one_round() -> None:
    """The answer to a later heartbeat proves leadership for the earlier reads too. §6.4"""
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.raft(1).read_index(b"one")
    lost = cluster[1].work()
    assert lost
    cluster.raft(1).read_index(b"two")
    cluster.settle()
    assert [one.context for one in cluster[1].reads] == [b"one", b"two"]


def test_lease_read_needs_no_round() -> None:
    """ "The leader would use the normal heartbeat mechanism to maintain a lease." §6.4.1"""
    cluster = Cluster(3, **FULL, read_mode=ReadMode.LEASE)
    cluster.elect(1)
    cluster.raft(1).read_index(b"r")
    assert cluster[1].work() == []
    assert [one.context for one in cluster[1].reads] == [b"r"]


def test_single_voter_grants_reads_alone() -> None:
    cluster = Cluster(1)
    cluster.elect(1)
    cluster.raft(1).read_index(b"r")
    cluster.settle()
    assert len(cluster[1].reads) == 1


def test_single_voter_that_starts_again_grants_no_read_before_it_committed_in_its_term() -> None:
    """ "If the leader has not yet marked an entry from its current term committed, it waits until
    it has done so." §6.4; the commit index on its disk may be older than what it answered."""
    storage = make_storage(ConfState(voters=(1,)), [1, 1, 1], HardState(1, 1, BASE))
    node = Node(1, storage, {})
    node.raft.campaign()
    while not node.raft.is_leader:
        storage.hard_state = node.raft.ready().hard_state or storage.hard_state
        node.raft.advance()
    node.raft.read_index(b"r")
    node.work()
    assert [one.index for one in node.reads] == [BASE + 4]


# §9.6 Preventing disruptions when a server rejoins the cluster


def test_pre_vote_raises_no_term() -> None:
    """ "In the Pre-Vote algorithm, a candidate only increments its term if it first learns from a
    majority of the cluster that they would be willing to grant the candidate their votes." §9.6"""
    cluster = Cluster(3, **FULL)
    term = cluster.raft(3).term
    cluster.cut(3)
    for _ in range(5):
        cluster.tick(3, 5)
        cluster.settle()
    assert (cluster.raft(3).role, cluster.raft(3).term) == (Role.PRE_CANDIDATE, term)


def test_server_that_rejoins_after_a_partition_does_not_unseat_the_leader() -> None:
    """ "The Pre-Vote algorithm solves the issue of a partitioned server disrupting the cluster
    when it rejoins." §9.6"""
    cluster = Cluster(3, **FULL)
    cluster.elect(1)
    term = cluster.raft(1).term
    cluster.cut(3)
    for _ in range(8):
        cluster.tick(3, 3)
        cluster.tick(1, 1)
        cluster.settle()
    cluster.heal()
    cluster.tick(1, 1)
    cluster.settle()
    assert cluster.leaders() == [1]
    assert {node.raft.term for node in cluster.nodes.values()} == {term}
    assert cluster.raft(3).leader == 1


def test_pre_vote_is_refused_by_a_more_up_to_date_server() -> None:
    """ "... that they would be willing to grant the candidate their votes (if the candidate's log
    is sufficiently up-to-date)" §9.6"""
    cluster = Cluster(3, logs={1: (1, 2), 2: (1, 2), 3: (1,)}, pre_vote=True)
    cluster.raft(3).campaign()
    cluster.settle()
    assert cluster.raft(3).role is Role.FOLLOWER
    cluster.elect(1)


def test_stale_pre_candidate_learns_the_term_from_a_refusal() -> None:
    cluster = Cluster(3, pre_vote=True)
    cluster.cut(3)
    cluster.elect(1)
    cluster.heal()
    cluster.raft(3).campaign()
    cluster.settle()
    assert cluster.raft(3).term == cluster.raft(1).term
