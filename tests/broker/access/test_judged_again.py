"""Connections that are judged again after a change of rules: in which turns of the loop, and in
which order."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from raftmq.access.rules import Act, Operation, Resource, Rule, Verdict
from raftmq.broker.access import gate
from raftmq.broker.host import Host
from raftmq.broker.loop_budget import TURN_SECONDS
from raftmq.broker.serve.answers import OpenRequest
from raftmq.broker.serve.connection import Connection
from raftmq.broker.settings import Access, NodeSettings, Settings
from raftmq.machine.catalog.access import DropRule, PutRule
from raftmq.machine.catalog.catalog import Catalog
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.assignment import Committed
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind

from .guarded import CLIENT, ROOT

READ_GROUPS = Rule("eve", True, Operation.READ, Resource.GROUP, "g", is_prefix=True)
TURN = gate.JUDGED_TURNS * TURN_SECONDS


class FakeConnection:
    """A connection, as the gate sees it."""

    def __init__(self, open_requests: int = 0) -> None:
        self.names = frozenset((CertificateName("c", USER, "eve"),))
        self.from_node = 0
        self.user = "eve"
        self.open_requests = open_requests


class World:
    """A gate with its rules, and a count of the loop's turns."""

    def __init__(self, clock: MockClock, nursery: trio.Nursery) -> None:
        self.clock = clock
        self.turn = 0
        self.ended: list[FakeConnection] = []
        """The connections that the gate ended, in order."""
        self.catalog = Catalog()
        node = SimpleNamespace(
            id=1,
            settings=Settings(NodeSettings(1, "c", ""), access=Access(is_on=True, admins=[ROOT])),
            catalog=self.catalog,
            quotas=SimpleNamespace(why_no_connection=lambda _: "", join=lambda *_: None),
            world=SimpleNamespace(now_ms=lambda: 0),
            start_soon=nursery.start_soon,
        )
        self.gate = gate.Gate(cast("Host", node))
        self.apply(PutRule(READ_GROUPS))

    def apply(self, command: PutRule | DropRule) -> None:
        access = self.catalog.access
        access.apply(command, index=access.version + 1, now=0)

    async def settled(self) -> None:
        """All connections are judged by the rules as they are."""
        self.gate.follow()
        while self.gate._version != self.catalog.access.version:
            await trio.lowlevel.checkpoint()
            self.turn += 1

    def connect(self, *groups: str, open_requests: int = 0) -> FakeConnection:
        """A connection of eve, who reads these groups."""
        made = FakeConnection(open_requests)
        connection = cast("Connection", made)
        self.gate.greet(connection, CLIENT)
        asked = cast("OpenRequest", SimpleNamespace(connection=made, kind=FrameKind.COMMITTED))
        frame = Frame(FrameKind.COMMITTED, 1, b"", b"")
        for group in groups:
            assert self.gate.check(asked, frame, Committed(1, group)) is None

        def end() -> None:
            self.ended.append(made)
            self.gate.closed(connection)

        made.end = end  # type: ignore[attr-defined]
        return made

    def acts(self, connection: FakeConnection) -> set[Act]:
        """The acts that the gate remembers of a connection."""
        return self.gate._clients[cast("Connection", connection)].allowed

    def slow_down(self) -> None:
        """From now on a verdict takes half a turn."""
        judge = self.gate.judge

        def slow(user: str, act: Act) -> Verdict:
            self.clock.jump(TURN / 2)
            return judge(user, act)

        self.gate.judge = slow  # type: ignore[method-assign]


def in_world(scenario: Callable[[World], Awaitable[Any]]) -> None:
    clock = MockClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world = World(clock, nursery)
            await world.settled()
            world.turn = 0
            await scenario(world)

    trio.run(main, clock=clock)


def test_hundreds_of_connections_are_judged_in_one_turn_while_time_is_left() -> None:
    """With a turn for each, 300 fetches that waited lived for 26 s at a node under load."""

    async def scenario(world: World) -> None:
        connections = [world.connect("g1") for _ in range(300)]
        world.apply(DropRule(READ_GROUPS))
        await world.settled()
        assert world.ended == connections
        assert world.turn <= 3

    in_world(scenario)


def test_a_connection_with_many_acts_is_judged_in_several_turns() -> None:
    async def scenario(world: World) -> None:
        world.connect(*(f"g{n}" for n in range(100)))
        world.slow_down()
        world.apply(PutRule(Rule("eve", True, Operation.READ, Resource.GROUP, "other")))
        await world.settled()
        assert not world.ended
        assert 50 <= world.turn <= 60

    in_world(scenario)


def test_those_who_wait_and_those_with_few_acts_are_judged_first() -> None:
    async def scenario(world: World) -> None:
        idle = world.connect("g1")
        busy = world.connect(*(f"g{n}" for n in range(100)), open_requests=1)
        waiting = world.connect("g1", open_requests=1)
        world.slow_down()
        world.apply(DropRule(READ_GROUPS))
        await world.settled()
        assert world.ended == [waiting, busy, idle]

    in_world(scenario)


# Acts that are remembered


def test_acts_of_all_connections_are_bounded_and_each_has_its_first_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "ACTS_MIN", 3)
    monkeypatch.setattr(gate, "ACTS_SHARED_MAX", 20)

    async def scenario(world: World) -> None:
        many = [world.connect(*(f"g{n}" for n in range(10))) for _ in range(5)]
        assert sum(len(world.acts(each)) for each in many) <= 20 + 5 * 3
        # Others are remembered and go on as before.
        few = [world.connect("g1", "g2", "g3") for _ in range(5)]
        assert [len(world.acts(each)) for each in few] == [3] * 5
        world.apply(PutRule(Rule("eve", True, Operation.READ, Resource.GROUP, "other")))
        await world.settled()
        assert world.ended
        assert not set(few) & set(world.ended)
        # There is room again once connections have ended.
        for each in [*many, *few]:
            world.gate.closed(cast("Connection", each))
        again = world.connect(*(f"g{n}" for n in range(10)))
        assert len(world.acts(again)) == 10

    in_world(scenario)
