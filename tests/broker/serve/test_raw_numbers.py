"""Numbers that raftmq's client never sends: each is refused with the right range."""

import struct
from typing import Any

import cbor2
import msgspec
import pytest

from raftmq.batch import encode
from raftmq.batch.layout import CRC, checksum
from raftmq.client import Client
from raftmq.errors import Reason, Rejected
from raftmq.machine.machine import PartitionMachine
from raftmq.wire.messages import ChangeNode, FrameKind, Transfer
from raftmq.wire.popping import Leave, Pop, Settle, SettleItem
from raftmq.wire.traces import FindEvents
from tests.broker.harness import Cluster, RawClient, Refused
from tests.broker.scenario import QUEUE, in_cluster, with_client

HUGE = (-(2**64), -(2**63), -1, 2**63, 2**64 - 1)
GROUP = 1


async def refusal(client: RawClient, kind: FrameKind, header: bytes, *body: bytes) -> str:
    """The refusal of a request, which names a wrong argument."""
    with pytest.raises(Refused) as refused:
        await client.request(kind, header, body)
    assert refused.value.reply.code in (Reason.BAD_ARGUMENT.value, Reason.CORRUPT_BATCH.value)
    return refused.value.reply.message


def with_time(time: int) -> bytes:
    """A batch of a message with this delivery time, as our encoder makes none."""
    plain = encode([b"late"], deliver_at_ms=[5_000]).to_bytes(queue=QUEUE, producer=7)
    payload = bytearray(plain.replace(struct.pack("<q", 5_000), struct.pack("<q", time)))
    assert payload != plain
    CRC.pack_into(payload, 0, checksum(bytes(payload)))
    return bytes(payload)


@pytest.mark.parametrize("time", [2**62, 2**63 - 1, -1, -(2**63)])
def test_delivery_time_that_no_clock_shows_is_refused_with_the_range(time: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        leader = cluster.leader_of(QUEUE)
        async with cluster.client(leader) as client:
            said = await refusal(client, FrameKind.PRODUCE, b"", with_time(time))
            assert f"{time} is not within 0 and {2**62 - 1}" in said
        machine = cluster.nodes[leader].groups[GROUP].machine
        assert isinstance(machine, PartitionMachine)
        assert machine.delays.count == 0

    in_cluster(scenario)


def requests(attachment: int) -> list[tuple[FrameKind, msgspec.Struct, str, tuple[int, ...]]]:
    """Kind, request, field, and meaningless values of the field."""
    item = SettleItem(0, 1, 0, b"\1")
    pop = Pop(GROUP, attachment, 77, 1, 10, 30_000, 1000)
    settle = Settle(GROUP, attachment, 77, 1, [item])
    return [
        (FrameKind.POP, pop, "consumer", (0, *HUGE)),
        (FrameKind.POP, pop, "wait_ms", (-1, -(2**63))),
        (FrameKind.SETTLE, settle, "consumer", (0, *HUGE)),
        (FrameKind.SETTLE, settle, "sequence", (2**63, -(2**63))),
        (FrameKind.LEAVE, Leave(GROUP, attachment, 77), "consumer", (0, *HUGE)),
        (FrameKind.TRANSFER, Transfer(GROUP, 0), "to", (2**32, *HUGE)),
        (FrameKind.CHANGE_NODE, ChangeNode("add", 9, "n9", 7400), "node", (0, 2**32, *HUGE)),
        (FrameKind.CHANGE_NODE, ChangeNode("replace", 3, "n9", 7400, 9), "new", (2**32, *HUGE)),
        (FrameKind.EVENTS, FindEvents(GROUP, 1), "bytes_max", (-1, -(2**63))),
    ]


def test_number_out_of_its_range_is_refused_by_its_name_and_the_connection_stays() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        async with cluster.client(cluster.leader(0)) as client:
            attachment, _ = await client.admin("attach", "orders", "g", "pop", False)
        nodes = {0: cluster.leader(0), GROUP: cluster.leader_of(QUEUE)}
        for kind, request, name, values in requests(attachment):
            plain: list[Any] = msgspec.to_builtins(request, builtin_types=(bytes,))
            at = type(request).__struct_fields__.index(name)
            async with cluster.client(
                nodes[0 if kind is FrameKind.CHANGE_NODE else GROUP]
            ) as client:
                for value in values:
                    header = cbor2.dumps([*plain[:at], value, *plain[at + 1 :]])
                    said = await refusal(client, kind, header)
                    assert f"{type(request).__name__}.{name}: Expected `int` " in said, value
        view = cluster.nodes[cluster.leader(0)].catalog.nodes
        assert sorted(view) == [1, 2, 3]

    in_cluster(scenario)


@pytest.mark.parametrize("node", [0, -1, 2**32, 2**63])
def test_node_with_a_number_that_no_member_can_have_is_refused(node: int) -> None:
    async def job(cluster: Cluster, mq: Client) -> None:
        with pytest.raises(Rejected) as refused:
            await mq.admin.add_node(node, "n9", 7400)
        assert refused.value.reason is Reason.BAD_ARGUMENT
        async with cluster.client(cluster.leader(0)) as client:
            command = ["put_node", [node, "n9", 7400]]
            with pytest.raises(Refused, match="a node's number is 1 to 4294967295"):
                await client.admin(*command)

    with_client(job)
