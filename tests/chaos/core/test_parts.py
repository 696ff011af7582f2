"""The parts of the core simulator, each by itself."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from raftmq.broker.replica.opener import consensus_meta
from raftmq.chaos.core import STEADY
from raftmq.chaos.core.checks.broken import Broken
from raftmq.chaos.core.checks.views import Durable, View
from raftmq.chaos.core.clock import START_MS, Clock
from raftmq.chaos.core.cluster import Cluster
from raftmq.chaos.core.faults import atlas
from raftmq.chaos.core.faults.effects import HELD
from raftmq.chaos.core.loop import Loop, Trace
from raftmq.chaos.core.network import Network
from raftmq.chaos.core.operator import adding, becomes, removing, replacing
from raftmq.chaos.faults.arena import CLIENTS
from raftmq.consensus import ConfState, HardState, Message, MessageKind, Snapshot
from raftmq.log.record import Kind, Record, encode


def chain(count: int, *, term: int = 1, after: Record | None = None) -> list[Record]:
    records = []
    for _ in range(count):
        index, crc = (after.index + 1, after.crc) if after else (1, 0)
        kind = Kind.BATCH
        after = encode(b"x", index=index, term=term, kind=kind, timestamp=0, chain=crc)
        records.append(after)
    return records


# Time


def test_events_of_one_time_happen_in_the_order_they_were_asked_for() -> None:
    loop, seen = Loop(), list[int]()
    for number in range(5):
        loop.at(10, seen.append, number)
    loop.at(5, seen.append, 9)
    loop.run_until(20)
    assert seen == [9, 0, 1, 2, 3, 4]
    assert loop.now_us == 20


def test_trace_depends_on_every_integer() -> None:
    traces = []
    for odd in (0, 1):
        trace = Trace()
        for number in range(10_000):
            trace.note(number, odd if number == 5000 else 0)
        traces.append(trace.hexdigest())
    assert traces[0] != traces[1]


def test_clock_is_wrong_as_it_is_told() -> None:
    loop = Loop()
    clock = Clock(loop)
    loop.run_until(10_000_000)
    assert clock.now_ms() == START_MS + 10_000
    clock.drift, clock.offset_ms = 0.1, -500
    assert clock.now_ms() == START_MS + 10_000 + 1000 - 500
    assert clock.tick_us(100_000) == 90_909
    clock.set_right()
    assert clock.now_ms() == START_MS + 10_000


# Network


def delivered(change: str, value: object, count: int = 400) -> list[int]:
    loop, seen = Loop(), list[int]()
    network = Network(loop, Random(1), lambda message: seen.append(message.index))
    setattr(network, change, value)
    network.settle()
    for index in range(count):
        network.send(Message(MessageKind.APPEND, 2, sender=1, index=index))
    loop.run_until(10**9)
    return seen


def test_network_without_faults_keeps_everything_in_order() -> None:
    assert delivered("loss", 0.0) == list(range(400))


def test_network_loses_doubles_and_reorders_shares() -> None:
    assert 150 < len(delivered("loss", 0.5)) < 250
    assert 450 < len(delivered("duplication", 0.3)) < 600
    mixed = delivered("reordering", 0.3)
    assert sorted(mixed) == list(range(400))
    assert mixed != sorted(mixed)
    assert delivered("lost_kinds", {int(MessageKind.APPEND)}) == []


def test_kind_that_is_late_comes_twice_or_is_overtaken() -> None:
    seen = delivered("late_kinds", Counter({int(MessageKind.APPEND): 1}))
    assert set(seen) == set(range(400))
    assert 480 < len(seen) < 560
    assert seen != sorted(seen)
    assert delivered("late_kinds", Counter({int(MessageKind.VOTE): 1})) == list(range(400))


def test_what_is_on_its_way_when_a_link_is_cut_is_lost() -> None:
    loop, seen = Loop(), list[int]()
    network = Network(loop, Random(1), lambda message: seen.append(message.index))
    network.send(Message(MessageKind.APPEND, 2, sender=1, index=1))
    network.cut([(1, 2), (1, 2)])
    loop.run_until(10_000)
    network.mend([(1, 2)])
    network.send(Message(MessageKind.APPEND, 2, sender=1, index=2))
    loop.run_until(20_000)
    network.mend([(1, 2)])
    network.send(Message(MessageKind.APPEND, 2, sender=1, index=3))
    loop.run_until(30_000)
    assert seen == [3]


# Views


def test_view_supersedes_from_an_index_on() -> None:
    old = chain(5)
    new = chain(2, term=2, after=old[2])
    view = View(0, old)
    view.put(new)
    assert view.records == [*old[:3], *new]
    assert view.holds(new[0])
    assert not view.holds(old[4])


def test_durable_view_knows_what_a_crash_must_leave() -> None:
    records = chain(6)
    durable = Durable()
    durable.wrote(records[:4], HardState(1, 1, 0))
    assert (durable.last, durable.floor()) == (0, 0)
    durable.synced()
    assert (durable.last, durable.floor()) == (4, 4)
    # After a crash the record written over the third one may be there, or not.
    durable.wrote(chain(1, term=2, after=records[1]), HardState(2, 0, 0))
    assert (durable.last, durable.floor()) == (4, 2)


# Atlas and operator


def test_atlas_counts_intact_copies_in_each_membership() -> None:
    cluster = Cluster(1, replace(STEADY, nodes=5))
    assert atlas.may_lose(cluster, cluster.nodes[1])
    cluster.nodes[1].is_damaged = cluster.nodes[2].is_damaged = True
    assert not atlas.may_lose(cluster, cluster.nodes[3])
    assert atlas.may_lose(cluster, cluster.nodes[6]), "it is no member"
    assert not atlas.may_become(cluster, ConfState(voters=(1, 2, 3)))


def test_requests_become_changes_or_nothing() -> None:
    conf = ConfState(voters=(1, 2, 3))
    change = replacing(3, 4)(conf)
    assert change is not None
    assert becomes(conf, change).voters == (1, 2, 4)
    assert adding(3)(conf) is None
    assert removing(3)(ConfState(voters=(2, 3))) is None


# Checks that see what a core would hide


def running() -> Cluster:
    cluster = Cluster(3, STEADY)
    cluster.begin()
    cluster.loop.run_until(5_000_000)
    return cluster


def test_two_leaders_of_one_term_are_noticed() -> None:
    cluster = running()
    leader = cluster.leader()
    assert leader is not None
    other = next(n.replica for n in cluster.nodes.values() if n.replica not in (None, leader))
    assert other is not None
    with pytest.raises(Broken, match="R1"):
        cluster.safety._won(other, cluster.safety._seen[other.node.id])


def test_acknowledgement_of_what_is_not_synced_is_noticed() -> None:
    cluster = running()
    node = cluster.nodes[1]
    assert node.replica is not None
    claim = Message(
        MessageKind.APPEND_RESPONSE, 2, sender=1, term=node.durable.hard_state.term,
        index=node.durable.last + 1,
    )  # fmt: skip
    with pytest.raises(Broken, match="R14"):
        cluster.safety.promised(node.replica, claim)


def test_request_for_a_vote_before_the_own_one_is_synced_is_noticed() -> None:
    cluster = running()
    node = cluster.nodes[1]
    assert node.replica is not None
    term = node.durable.hard_state.term + 1
    with pytest.raises(Broken, match="R14"):
        node.replica.send(Message(MessageKind.VOTE, 2, sender=1, term=term))


def test_who_still_leads_is_asked_when_another_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running()
    leader = cluster.leader()
    assert leader is not None
    others = {node.place for node in cluster.nodes.values()} - {leader.node.place}
    pairs = [(leader.node.place, other) for other in others]
    cluster.network.cut(pairs + [(b, a) for a, b in pairs])
    asked: list[object] = []
    monkeypatch.setattr(cluster.clients, "_visit", asked.append)
    cluster.nodes[leader.node.id].pause()
    while cluster.leader() is leader:
        cluster.loop.run_until(cluster.loop.now_us + 100_000)
    cluster.loop.run_until(cluster.loop.now_us + 2_000_000)
    assert asked[0] is cluster.leader()
    assert leader in asked


def test_no_client_reaches_a_node_beyond_a_cut() -> None:
    cluster = running()
    network, counts = cluster.network, cluster.counts
    with_clients = [(CLIENTS, place) for place in cluster.at_place]
    network.cut(with_clients)
    cluster.loop.run_until(cluster.loop.now_us + 1_000_000)
    before = counts["acked"]
    cluster.loop.run_until(cluster.loop.now_us + 3_000_000)
    assert counts["acked"] == before
    assert cluster.loop.effects[HELD]
    network.mend(with_clients)
    cluster.loop.run_until(cluster.loop.now_us + 3_000_000)
    assert counts["acked"] > before


def test_lost_synced_record_is_noticed_at_the_next_start() -> None:
    cluster = running()
    node = cluster.nodes[1]
    node.end(power=False)
    path = max(f"log/{name}" for name in node.disk.list("log") if name.endswith(".log"))
    node.disk.put(path, node.disk.bytes_of(path)[:400])
    with pytest.raises(Broken, match=r"R6|L2"):
        node.start()


def test_another_state_after_the_same_record_is_noticed() -> None:
    cluster = running()
    replica = cluster.nodes[1].replica
    assert replica is not None
    replica.machine.digest ^= 1
    with pytest.raises(Broken, match="R21"):
        cluster.loop.run_until(10_000_000)


def test_loop_in_which_time_stands_still_ends() -> None:
    loop = Loop()

    def again() -> None:
        loop.after(0, again)

    loop.at(7, again)
    with pytest.raises(Broken, match=r"V6: 10001 events at 7 us.*again"):
        loop.run_until(100)


def test_change_that_does_not_prove_the_one_before_is_noticed() -> None:
    cluster = running()
    replica = cluster.nodes[1].replica
    assert replica is not None
    committed = replica.core.log.committed
    replica.view.memberships = [committed, committed + 5]
    cluster.safety._check_changes(replica)
    replica.view.memberships = [committed + 1, committed + 5]
    with pytest.raises(Broken, match="R24"):
        cluster.safety._check_changes(replica)


# Transfers


def test_process_that_starts_again_sends_a_snapshot_that_its_last_life_was_sending() -> None:
    """The transfer of the dead process stands until its timeout; the new one was refused without a
    word, and its member waited for a snapshot for ever."""
    cluster = Cluster(3, replace(STEADY, segment_bytes=1024))
    cluster.begin()
    cluster.loop.run_until(10_000_000)
    leader = cluster.leader()
    assert leader is not None
    node = cluster.nodes[leader.node.id]
    other = next(n for n in cluster.nodes if n != leader.node.id)
    meta = consensus_meta(leader.store.snapshots[-1])
    message = Message(MessageKind.SNAPSHOT, other, sender=node.id, snapshot=Snapshot(meta))
    sent = cluster.counts["snapshots sent"]
    cluster.transfers.send(leader, message)
    cluster.transfers.send(leader, message)
    assert cluster.counts["snapshots sent"] == sent + 1
    node.end(power=False)
    node.start()
    assert node.replica is not None
    cluster.transfers.send(node.replica, message)
    assert cluster.counts["snapshots sent"] == sent + 2
