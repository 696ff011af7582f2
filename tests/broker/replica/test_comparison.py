"""Replicas that differ are found at the next border, by the checksum in the log, and rebuilt."""

from collections.abc import Awaitable, Callable
from typing import Any

import cbor2
import pytest
import trio

from raftmq.broker.replica import comparison
from raftmq.broker.replica.comparison import Checksum
from raftmq.broker.replica.group import Group
from raftmq.broker.replica.opener import restore_machine
from raftmq.broker.settings import Log
from raftmq.broker.tickets import Callback
from raftmq.errors import CorruptRecord
from raftmq.log.faults import DiskFull
from raftmq.log.record import Kind
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.frame import Frame
from raftmq.wire.messages import REPLY
from tests.broker.harness import Cluster, RawClient
from tests.broker.popping import Consumer, with_group
from tests.broker.scenario import QUEUE

SMALL = Log(segment_bytes=64 * 1024, cache_bytes=1 << 20, reserve_bytes=0)
NUMBER = 1


class Borders:
    """Sends enough for borders to pass."""

    def __init__(self, cluster: Cluster, client: RawClient) -> None:
        self.cluster, self.client, self.sent = cluster, client, 0

    async def pass_one(self) -> None:
        for _ in range(3):
            await self.client.produce(QUEUE, [b"x" * 30_000], self.sent)
            self.sent += 1
        await trio.sleep(1)

    def group(self, node: int) -> Group:
        return self.cluster.nodes[node].groups[NUMBER]

    def machine(self, node: int) -> PartitionMachine:
        machine = self.group(node).machine
        assert isinstance(machine, PartitionMachine)
        return machine

    @property
    def leader(self) -> int:
        return self.cluster.leader_of(QUEUE)

    @property
    def followers(self) -> list[int]:
        return [node for node in sorted(self.cluster.nodes) if node != self.leader]

    def differ(self, node: int) -> None:
        """Change a count in the state of one replica, as a bug would."""
        self.machine(node).delays.dropped += node

    def mended(self, node: int) -> int:
        return self.cluster.nodes[node].snapshots.comparing.mended

    def assert_alike(self) -> None:
        states = {self.machine(node).snapshot() for node in self.cluster.nodes}
        assert len(states) == 1
        assert not [node for node in self.cluster.nodes if self.group(node).differs]


def run(job: Callable[[Borders, Consumer], Awaitable[None]]) -> None:
    async def whole(cluster: Cluster, client: RawClient, alice: Consumer) -> None:
        await job(Borders(cluster, client), alice)

    with_group(whole, log=SMALL)


def test_replicas_that_are_alike_are_compared_and_left_alone() -> None:
    async def job(borders: Borders, alice: Consumer) -> None:
        for _ in range(3):
            await borders.pass_one()
        for node in borders.cluster.nodes.values():
            assert node.snapshots.comparing.compared >= 2
            assert node.snapshots.comparing.mended == 0
        borders.assert_alike()

    run(job)


def test_follower_that_differs_is_rebuilt_and_serves_the_right_state() -> None:
    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        wrong = borders.followers[0]
        borders.differ(wrong)
        await borders.pass_one()
        await borders.pass_one()
        assert borders.mended(wrong) == 1
        borders.assert_alike()
        assert [borders.mended(node) for node in borders.followers[1:]] == [0]
        # Its snapshots are equal to those of the others.
        border = borders.group(wrong).store.snapshots[-1]
        assert border in borders.group(borders.leader).store.snapshots

    run(job)


def test_two_of_three_that_differ_are_rebuilt_while_messages_flow() -> None:
    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        for node in borders.followers:
            borders.differ(node)
        await borders.pass_one()
        await borders.pass_one()
        assert [borders.mended(node) for node in borders.followers] == [1, 1]
        borders.assert_alike()
        _, bodies = await alice.pop(borders.sent)
        assert len(bodies) == borders.sent

    run(job)


def test_answer_of_a_peer_that_cannot_be_read_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def garbled(kind: int, *_: object) -> Frame:
        return Frame(kind | REPLY, 1, b"\xff", b"")

    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        wrong = borders.followers[0]
        first = borders.cluster.nodes[wrong].links.all()[0]
        monkeypatch.setattr(first, "request", garbled)
        borders.differ(wrong)
        await borders.pass_one()
        await borders.pass_one()
        assert borders.mended(wrong) == 1
        borders.assert_alike()

    run(job)


def test_full_disk_while_a_rotten_snapshot_is_fetched_again_ends_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults: list[str] = []

    def rotten_once(*args: Any) -> Any:
        if "rotten" not in faults:
            faults.append("rotten")
            raise CorruptRecord("rotten", position=0)
        return restore_machine(*args)

    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        wrong = borders.followers[0]
        store = borders.group(wrong).store
        adopt = store.adopt_snapshot

        def full_once(index: int) -> None:
            if "full" not in faults and "rotten" in faults:
                faults.append("full")
                raise DiskFull("full")
            adopt(index)

        monkeypatch.setattr(comparison, "restore_machine", rotten_once)
        monkeypatch.setattr(store, "adopt_snapshot", full_once)
        borders.differ(wrong)
        await borders.pass_one()
        await borders.pass_one()
        await trio.sleep(10)
        assert faults == ["rotten", "full"]
        assert borders.mended(wrong) == 1
        borders.assert_alike()

    run(job)


def test_checksum_of_the_log_decides_also_if_the_leader_is_the_one_that_differs() -> None:
    """The leader at the border is right by definition: clients have seen its state."""

    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        odd = borders.leader
        borders.differ(odd)
        await borders.pass_one()
        await borders.pass_one()
        assert [borders.mended(node) for node in sorted(borders.cluster.nodes)].count(1) == 2
        assert borders.mended(odd) == 0
        assert borders.machine(borders.followers[0]).delays.dropped == odd
        borders.assert_alike()

    run(job)


def test_new_leader_that_differs_serves_nobody_before_it_is_rebuilt() -> None:
    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        await borders.pass_one()
        leader = borders.leader
        group = borders.group(leader)
        # Another leader had taken its snapshot here, and was replaced by this one.
        found = borders.cluster.nodes[leader].snapshots.comparing
        border, crc = max(found._own[NUMBER].items())
        borders.differ(leader)
        found._own[NUMBER][border] = crc ^ 1
        found._compare(group, border)
        assert group.differs
        assert not group.is_current
        assert group.refusal == group.differs
        await trio.sleep(5)
        assert found.mended == 1
        await borders.pass_one()
        borders.assert_alike()

    run(job)


def test_leader_whom_nobody_can_mend_or_relieve_trusts_itself_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "OVERRULE_SECONDS", 5.0)
    monkeypatch.setattr(comparison, "heirs", lambda *_: iter(()))

    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        await borders.pass_one()
        leader = borders.leader
        group = borders.group(leader)
        told = borders.cluster.nodes[leader].snapshots.comparing._told[NUMBER]
        border = max(told)
        told[border] ^= 1
        borders.cluster.nodes[leader].snapshots.comparing._compare(group, border)
        assert group.differs
        await trio.sleep(8)
        assert not group.differs
        await borders.pass_one()
        borders.assert_alike()

    run(job)


def test_other_versions_and_malformed_checksums_compare_nothing() -> None:
    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        await borders.pass_one()
        group = borders.group(borders.leader)
        border = group.store.snapshots[-1].index
        version = group.machine.state_version
        nodes = borders.cluster.nodes
        # Followers apply the last checksum when they hear of its commit, with another record.
        await borders.client.produce(QUEUE, [b"x"], borders.sent)
        await trio.sleep(1)
        compared = {number: nodes[number].snapshots.comparing.compared for number in nodes}
        for payload in (b"", b"x" * 99, Checksum(border, 1, version + 1).encode()):
            group.propose(Kind.CHECKSUM, payload, Callback(lambda _: None, lambda _: None))
        await trio.sleep(1)
        for number, node in nodes.items():
            assert node.snapshots.comparing.compared == compared[number]
        borders.assert_alike()

    run(job)


def test_replica_whose_offsets_differ_stops_and_says_what_to_do() -> None:
    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        await borders.pass_one()
        wrong = borders.followers[0]
        borders.machine(wrong).ends[QUEUE] += 1
        await borders.pass_one()
        await borders.pass_one()
        await borders.cluster.wait_until(lambda: wrong in borders.cluster.stopped)
        assert "delete its data folder" in str(borders.cluster.stopped.pop(wrong))

    run(job)


def test_replica_that_is_restarted_while_it_differs_is_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def job(borders: Borders, alice: Consumer) -> None:
        await borders.pass_one()
        await borders.pass_one()
        wrong = borders.followers[0]
        found = borders.cluster.nodes[wrong].snapshots.comparing
        monkeypatch.setattr(found, "_fetch", never)
        borders.differ(wrong)
        await borders.pass_one()
        await borders.pass_one()
        assert borders.group(wrong).differs
        borders.cluster.kill(wrong)
        await borders.cluster.start(wrong)
        await trio.sleep(10)
        assert borders.mended(wrong) == 1
        borders.assert_alike()

    run(job)


def test_snapshot_of_older_software_is_not_compared_after_the_upgrade() -> None:
    async def job(borders: Borders, alice: Consumer) -> None:
        old = borders.followers[0]
        machine = borders.machine(old)
        newer = machine.snapshot

        def older() -> bytes:
            state = cbor2.loads(newer())
            # Version 11 had no count of the parts of deletions.
            state[0], state[10] = 11, state[10][:4]
            return cbor2.dumps(state)

        machine.state_version = 11
        machine.snapshot = older  # type: ignore[method-assign]
        for _ in range(4):
            await borders.pass_one()
        borders.cluster.kill(old)
        await borders.cluster.start(old)
        await borders.pass_one()
        borders.assert_alike()
        assert borders.mended(old) == 0
        # Of the next border it has a snapshot in the new format.
        await borders.pass_one()
        assert borders.cluster.nodes[old].snapshots.comparing.compared

    run(job)


async def never(*_: object) -> bool:
    return False
