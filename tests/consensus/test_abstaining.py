"""A member that lost a part of its log follows, and grants no vote before it holds all again."""

from random import Random
from typing import Any

import pytest

from raftmq.consensus import HardState, Message, MessageKind, Role
from tests.consensus.cluster import Cluster, of_kind


def lose(cluster: Cluster, number: int, kept: int) -> None:
    """Cut a member's log to `kept` records, as the log store does: in a term it never was in."""
    node = cluster[number]
    term, _, commit = node.storage.hard_state
    del node.storage.records[kept:]
    node.storage.hard_state = HardState(term + 1, 0, min(commit, node.storage.last_index()))
    node.settings["abstains"] = True
    node.restart()


def return_if_due(cluster: Cluster) -> None:
    """Do what the shell does when a member holds all again."""
    for node in cluster.nodes.values():
        if node.raft.abstains and node.raft.may_count_again:
            node.raft.end_abstention()
            node.settings["abstains"] = False


def filled(**settings: Any) -> Cluster:
    """A cluster led by 1 whose members all hold two messages."""
    cluster = Cluster(3, **settings)
    cluster.elect(1)
    cluster.propose(1, b"a")
    cluster.propose(1, b"b")
    cluster.settle()
    return cluster


def test_abstaining_member_does_not_campaign() -> None:
    cluster = filled()
    lose(cluster, 2, 1)
    raft = cluster.raft(2)
    raft.campaign()
    for _ in range(100):
        raft.tick()
    raft.step(Message(MessageKind.TIMEOUT_NOW, 2, sender=1, term=raft.term))
    assert raft.role is Role.FOLLOWER
    (answer,) = cluster[2].work()
    assert (answer.kind, answer.to) == (MessageKind.TRANSFER_DECLINED, 1)


@pytest.mark.parametrize("kind", [MessageKind.VOTE, MessageKind.PRE_VOTE])
def test_abstaining_member_refuses_even_a_candidate_with_a_longer_log(kind: MessageKind) -> None:
    cluster = filled()
    lose(cluster, 2, 1)
    request = Message(kind, 2, sender=3, term=9, index=50, log_term=8)
    (answer,) = cluster[2].step(request)
    assert answer.reject
    assert cluster[2].storage.hard_state.vote == 0


def test_leader_of_an_older_term_learns_that_the_member_is_beyond_it() -> None:
    cluster = filled(pre_vote=True, check_quorum=True)
    lose(cluster, 2, 1)
    cluster.propose(1, b"c")
    cluster.settle()
    assert cluster.raft(1).role is Role.FOLLOWER
    assert cluster[2].log == cluster[1].log[:1]
    assert not cluster.raft(2).may_count_again


def test_member_counts_again_once_a_record_of_the_new_leaders_term_is_committed_and_here() -> None:
    cluster = filled()
    lose(cluster, 2, 1)
    cluster.tick(1, 1)
    cluster.settle()
    assert not cluster.raft(2).may_count_again
    cluster.raft(3).campaign()
    cluster.settle()
    cluster.raft(3).campaign()
    cluster.settle()
    assert cluster.leaders() == [3]
    cluster.tick(3, 1)
    cluster.settle()
    assert cluster[2].log == cluster[3].log
    assert cluster.raft(2).may_count_again
    return_if_due(cluster)
    cluster.cut(3)
    cluster.raft(2).campaign()
    cluster.settle()
    assert cluster.raft(2).role is Role.LEADER


def test_commit_index_on_a_record_of_an_older_term_does_not_end_the_abstention() -> None:
    cluster = filled()
    lose(cluster, 2, 2)
    raft = cluster.raft(2)
    older = raft.last_index
    heartbeat = Message(MessageKind.HEARTBEAT, 2, sender=3, term=9, commit=older)
    cluster[2].step(heartbeat)
    assert raft.status().hard_state.commit == older
    assert not raft.may_count_again


def test_lost_acknowledgement_is_not_outvoted_by_who_never_had_the_record() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.cut(3)
    cluster.propose(1, b"acked")
    cluster.settle()
    assert cluster[1].payloads == [b"acked"]
    lose(cluster, 2, 0)
    cluster.heal()
    cluster.cut(1)
    for _ in range(5):
        for number in (2, 3):
            cluster.raft(number).campaign()
            cluster.settle()
        return_if_due(cluster)
    assert cluster.raft(2).role is not Role.LEADER
    assert cluster.raft(3).role is not Role.LEADER


def test_heartbeat_with_a_commit_index_beyond_the_log_is_noticed_and_not_answered() -> None:
    cluster = filled()
    raft = cluster.raft(2)
    beyond = Message(MessageKind.HEARTBEAT, 2, sender=1, term=raft.term, commit=99)
    assert of_kind(cluster[2].step(beyond), MessageKind.HEARTBEAT_RESPONSE) == []
    assert raft.has_lost


def play(cluster: Cluster, random: Random, size: int) -> None:
    """One step of the world: harm, heal, campaign, propose, or let time pass."""
    number = random.randint(1, size)
    match random.randrange(7):
        case 0:
            cluster.cut(*random.sample(range(1, size + 1), random.randint(1, size // 2)))
        case 1 | 2:
            cluster.heal()
        case 3:
            cluster.raft(number).campaign()
        case 4:
            abstaining = sum(node.raft.abstains for node in cluster.nodes.values())
            if abstaining < size // 2:
                lose(cluster, number, random.randint(0, len(cluster[number].storage.records)))
        case _:
            for leader in cluster.leaders():
                cluster.propose(leader, b"%d" % random.randrange(10**6))
    cluster.settle()
    for leader in cluster.leaders():
        cluster.tick(leader, 1)
    cluster.settle()
    return_if_due(cluster)


@pytest.mark.parametrize("size", [3, 5])
def test_what_was_committed_stays_whatever_a_minority_loses(size: int) -> None:
    held = elections = returns = 0
    for seed in range(60):
        random = Random(1000 * size + seed)
        cluster = Cluster(size, draw=random.randrange)
        cluster.elect(1)
        committed: dict[int, bytes] = {}
        terms = set()
        for _ in range(80):
            before = sum(node.raft.abstains for node in cluster.nodes.values())
            play(cluster, random, size)
            returns += before > sum(node.raft.abstains for node in cluster.nodes.values())
            for node in cluster.nodes.values():
                for record in node.applied:
                    was = committed.setdefault(record.index, record.encoded)
                    assert was == record.encoded, f"seed {seed}: record {record.index} changed"
            for leader in cluster.leaders():
                terms.add(cluster.raft(leader).term)
        elections += len(terms)
        held += len(committed)
    assert held > 500
    assert elections > 120
    assert returns > 20
