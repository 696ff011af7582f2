"""Linearizable reads that one heartbeat round grants together are answered in turns of the loop."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from raftmq.broker.loop_budget import TURN_SECONDS, Turns
from raftmq.broker.node import Node
from raftmq.broker.serve.answers import OpenRequest
from raftmq.broker.serve.connection import Connection
from raftmq.wire.assignment import Heartbeat
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import REPLY, ClusterView, ErrorReply, FrameKind, Metadata
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

READ = (FrameKind.METADATA, pack(Metadata(None, is_latest=True)), ())


def test_calls_beyond_a_turn_wait_for_the_next_ones_and_owners_take_turns() -> None:
    clock = trio.testing.MockClock()
    tasks = deque[tuple[Callable[..., Any], Any]]()
    made: list[str] = []

    async def main() -> list[list[str]]:
        turns = Turns(lambda task, call: tasks.append((task, call)))

        def call(name: str) -> None:
            clock.jump(0.6 * TURN_SECONDS)
            made.append(name)
            if name == "b0":
                turns.make("b", partial(call, "b1"))

        turns.begin()
        for number in range(6):
            turns.make("a", partial(call, f"a{number}"))
        turns.make("b", partial(call, "b0"))
        by_turn = [made.copy()]
        while tasks:
            made.clear()
            # A call of an owner with calls that wait does not overtake them in a later step.
            turns.begin()
            task, argument = tasks.popleft()
            await task(argument)
            by_turn.append(made.copy())
        return by_turn

    assert trio.run(main, clock=clock) == [
        ["a0", "a1"],
        ["a2", "b0"],
        ["a3", "b1"],
        ["a4", "a5"],
    ]


@pytest.mark.parametrize("size", [1, 3])
def test_each_of_many_reads_is_answered_where_a_step_has_time_for_none(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.broker.loop_budget.TURN_SECONDS", 0.0)
    is_in_step = False
    in_steps = 0
    settle, answer = Node.settle, OpenRequest.answer

    def settled(node: Node) -> None:
        nonlocal is_in_step
        is_in_step = True
        settle(node)
        is_in_step = False

    def answered(asked: OpenRequest, reply: Any) -> None:
        nonlocal in_steps
        in_steps += is_in_step and isinstance(reply, ClusterView)
        answer(asked, reply)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        monkeypatch.setattr(Node, "settle", settled)
        monkeypatch.setattr(OpenRequest, "answer", answered)
        async with cluster.client(cluster.leader(0)) as client:
            frames = await client.request_all(*[READ] * 50)
        views = [unpack(ClusterView, frame.header) for frame in frames]
        assert {topic.name for view in views for topic in view.topics} == {"orders"}
        assert in_steps == 0

    in_cluster(scenario, size=size)


def test_read_of_a_connection_that_takes_no_answers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("orders", 1)
        async with cluster.client(cluster.leader(0)) as client:
            monkeypatch.setattr(Connection, "is_unread", True)
            (frame,) = await client.request_all(READ)
        assert frame.kind == FrameKind.ERROR
        error = unpack(ErrorReply, frame.header)
        assert (error.code, error.retry_ms > 0) == ("busy", True)

    in_cluster(scenario)


def test_heartbeats_whose_wait_ends_at_one_moment_are_answered_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftmq.broker.loop_budget.TURN_SECONDS", 0.0)
    turns, go_on = 0, Turns._go_on

    def counted(self: Turns) -> None:
        nonlocal turns
        turns += 1
        go_on(self)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 12)
        async with cluster.client(cluster.leader(0)) as client:
            for n in range(1, 13):
                await client.admin("join", "t", "g", n, 60_000, f"i{n}", False, "", "broadcast")
            beats = [
                (FrameKind.HEARTBEAT, pack(Heartbeat(n, 1 << 60, 2000)), ()) for n in range(1, 13)
            ]
            monkeypatch.setattr(Turns, "_go_on", counted)
            frames = await client.request_all(*beats)
        assert {frame.kind for frame in frames} == {FrameKind.HEARTBEAT | REPLY}
        assert turns >= 12

    in_cluster(scenario)
