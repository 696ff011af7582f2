"""Changes of members that one member alone knows to be committed: votes tell the others."""

from typing import Any

import pytest

from raftmq.consensus import (
    Change,
    ChangeKind,
    HardState,
    MembershipChange,
    Message,
    MessageKind,
    Role,
)
from tests.consensus.cluster import Cluster

REPLACE = MembershipChange((Change(ChangeKind.ADD_VOTER, 4), Change(ChangeKind.REMOVE, 1)))


def left_alone(**settings: Any) -> Cluster:
    """Node 4 replaces the leader, node 1. Node 1 alone knows that the change is committed, and its
    log is longer than all others."""
    cluster = Cluster(3, spare=[4], **settings)
    cluster.elect(1)
    leave = cluster[1].log[-1][1] + 2
    cluster.raft(1).propose_membership(REPLACE, now=0)

    def is_lost(message: Message) -> bool:
        is_beyond = any(record.index > leave for record in message.entries)
        return message.sender == 1 and (message.commit >= leave or is_beyond)

    has_more = False
    while cluster.collect():
        taken, cluster.messages = cluster.messages, []
        if not has_more and cluster[1].log[-1][1] == leave:
            cluster.propose(1, b"only here")
            has_more = True
        for message in taken:
            if not is_lost(message):
                cluster.raft(message.to).step(message)
    assert has_more
    assert cluster[1].conf_state.voters == (2, 3, 4)
    assert cluster[2].conf_state.voters_outgoing == (1, 2, 3)
    assert len(cluster[1].log) > len(cluster[2].log)
    return cluster


@pytest.mark.parametrize("settings", [{}, {"pre_vote": True, "check_quorum": True}])
def test_its_refusal_tells_the_others_that_it_is_no_member(settings: dict[str, bool]) -> None:
    cluster = left_alone(**settings)
    # Any two of 2, 3 and 4 are enough now, but of 1, 2 and 3 the old half needs two as well.
    cluster.cut(3)
    for node in (1, 2, 4, 2):
        cluster.tick(node, 100)
        cluster.settle()
    assert cluster.leaders() == [2]
    assert cluster[2].conf_state.voters == (2, 3, 4)


def test_refusal_moves_no_commit_index_where_the_records_differ() -> None:
    cluster = left_alone()
    candidate = cluster.raft(2)
    leave = cluster[1].log[-2][1]
    for commit_term, commit in ((9, leave), (1, 90)):
        candidate.campaign()
        cluster[2].work()
        cluster[2].step(
            Message(
                MessageKind.VOTE_RESPONSE,
                2,
                sender=1,
                term=candidate.term,
                reject=True,
                commit=commit,
                commit_term=commit_term,
            )
        )
        assert cluster[2].conf_state.voters_outgoing == (1, 2, 3)
        assert candidate.role is Role.CANDIDATE


def forget_commit(cluster: Cluster, node: int, commit: int) -> None:
    """A node crashes, and the last commit index that it wrote is an older one."""
    storage = cluster[node].storage
    storage.hard_state = HardState(storage.hard_state.term, storage.hard_state.vote, commit)
    cluster[node].restart()


def add_here(cluster: Cluster, *nodes: int) -> None:
    """The leader, node 1, adds a record that only these get."""
    cluster.propose(1, b"only here")
    for message in cluster.collect():
        if message.to in nodes:
            cluster[message.to].step(message)
    cluster.messages = []


@pytest.mark.parametrize(
    ("settings", "turns"),
    [({}, (4, 1)), ({}, (1,)), ({"pre_vote": True, "check_quorum": True}, (4, 1))],
)
def test_vote_tells_a_candidate_that_it_left_the_joint_membership(
    settings: dict[str, Any], turns: tuple[int, ...]
) -> None:
    cluster = Cluster(3, spare=[4], **settings)
    cluster.elect(1)
    replace = MembershipChange((Change(ChangeKind.ADD_VOTER, 4), Change(ChangeKind.REMOVE, 3)))
    cluster.raft(1).propose_membership(replace, now=0)
    cluster.settle()
    leave = cluster[4].log[-1][1]
    assert cluster[4].conf_state.voters == (1, 2, 4)
    # Of 1, 2 and 4 there are two. Node 1 forgot that it left the half of 1, 2 and 3, and 4 cannot
    # win, as its log is shorter.
    add_here(cluster)
    forget_commit(cluster, 1, leave - 1)
    cluster.cut(2)
    cluster.cut(3)
    for node in 4 * turns:
        cluster.tick(node, 30)
        cluster.settle()
        if cluster.leaders() == [1]:
            break
    assert cluster.leaders() == [1]


@pytest.mark.parametrize("settings", [{}, {"pre_vote": True, "check_quorum": True}])
def test_request_for_a_vote_tells_a_learner_that_it_was_promoted(settings: dict[str, Any]) -> None:
    cluster = Cluster(2, learners=[3], **settings)
    cluster.elect(1)
    promote = MembershipChange((Change(ChangeKind.ADD_VOTER, 3),))
    cluster.raft(1).propose_membership(promote, now=0)
    cluster.settle()
    promoted = cluster[2].log[-1][1]
    assert cluster[2].conf_state.voters == (1, 2, 3)
    # Node 3 forgot that it may campaign, and its log is longer than that of 2.
    add_here(cluster, 3)
    forget_commit(cluster, 3, promoted - 1)
    cluster.cut(1)
    for node in (2, 3):
        cluster.tick(node, 100)
        cluster.settle()
    assert cluster.raft(3).role is Role.LEADER
