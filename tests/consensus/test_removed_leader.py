"""A leader that removed itself, and is cut off before it says that the change is committed."""

from typing import Any

import pytest

from raftmq.consensus import (
    Change,
    ChangeKind,
    MembershipChange,
    Message,
    MessageKind,
    Role,
)
from tests.consensus.cluster import Cluster

REPLACE = MembershipChange((Change(ChangeKind.ADD_VOTER, 4), Change(ChangeKind.REMOVE, 1)))


def left_alone(**settings: Any) -> Cluster:
    """Node 4 takes the place of node 1, which leads, and which alone knows that it is so; its log
    is longer than all others."""
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
    for log_term, commit in ((9, leave), (1, 90)):
        candidate.campaign()
        cluster[2].work()
        cluster[2].step(
            Message(
                MessageKind.VOTE_RESPONSE,
                2,
                sender=1,
                term=candidate.term,
                reject=True,
                log_term=log_term,
                commit=commit,
            )
        )
        assert cluster[2].conf_state.voters_outgoing == (1, 2, 3)
        assert candidate.role is Role.CANDIDATE
