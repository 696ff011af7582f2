"""Fetch sessions of consumer groups with a filter, which changes."""

from typing import Any

import msgspec
import pytest
import trio

from raftmq.broker.serve.fetch_sessions import FetchSession
from raftmq.machine.catalog.subscribers import Subscribe
from tests.broker.harness import Cluster, RawClient
from tests.broker.scenario import QUEUE, in_cluster

from .test_fetch_sessions import led_by, opened


def test_group_in_a_session_gets_what_matches_also_after_its_filter_changed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 9)
        one, other = led_by(cluster, 1, 9)[:2]

        async def send(client: RawClient, queue: int, first: int, *numbers: int) -> None:
            bodies = [b"%d" % n for n in numbers]
            props = [{"n": n} for n in numbers]
            await client.produce(queue, bodies, first, producer=queue, props=props)

        async def subscribe(expression: str) -> None:
            async with cluster.client(cluster.leader(0)) as admin:
                command = msgspec.to_builtins(Subscribe("t", "g", expression))
                await admin.admin(*command)

        async with cluster.client(1) as client:
            await subscribe("n > 10")
            await trio.sleep(1)
            reader = await opened(cluster, client, [one, other], consumer_group="g")
            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.ask)
                await send(client, one, 0, 1, 2, 3)
                await trio.sleep(1)
                assert reader.epoch == 1, "woken by what does not match"
                await send(client, one, 3, 11)
            assert trio.current_time() - begun < 3
            assert reader.offsets[one] == 4
            # Between requests, and during a long pause.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.ask)
                await trio.sleep(0.1)
                await subscribe("n < 10")
                await trio.sleep(1)
                await send(client, other, 0, 12, 5)
            await subscribe("n = 7")
            await trio.sleep(1)
            await send(client, one, 4, 5, 7)
            while reader.offsets[one] < 6:
                await reader.ask()
            reader.wait_ms = 100
            await send(client, one, 6, 8, 9)
            while reader.offsets[one] < 8:
                await reader.ask()
        assert reader.offsets == {one: 8, other: 2}
        assert reader.bodies == {one: [b"11", b"7"], other: [b"5"]}

    in_cluster(scenario)


def test_sessions_whose_filter_may_have_changed_are_looked_at_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    has_new_filter = FetchSession.has_new_filter

    class EachStep(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            looks.append(0)

    def counted(*arguments: Any) -> bool:
        looks[-1] += 1
        return has_new_filter(*arguments)

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("t", 1)
        node = cluster.leader(1)
        async with cluster.client(node) as client, cluster.client(cluster.leader(0)) as admin:
            await admin.admin(*msgspec.to_builtins(Subscribe("t", "g", "n > 10")))
            await trio.sleep(1)
            readers = [await opened(cluster, client, [QUEUE], consumer_group="g") for _ in range(9)]
            async with trio.open_nursery() as nursery:
                for reader in readers:
                    nursery.start_soon(reader.ask)
                await trio.sleep(0.1)
                monkeypatch.setattr("raftmq.broker.loop_budget.TURN_SECONDS", 0.0)
                monkeypatch.setattr(FetchSession, "has_new_filter", counted)
                instrument = EachStep()
                trio.lowlevel.add_instrument(instrument)
                await admin.admin(*msgspec.to_builtins(Subscribe("t", "g", "n < 10")))
                await trio.sleep(1)
                trio.lowlevel.remove_instrument(instrument)
                assert sum(looks) >= len(readers)
                assert max(looks) <= 2, "more than one session in a turn"
                monkeypatch.setattr(FetchSession, "has_new_filter", has_new_filter)
                await client.produce(QUEUE, [b"x"], 0, props=[{"n": 5}])
        assert [reader.bodies for reader in readers] == [{QUEUE: [b"x"]}] * len(readers)

    in_cluster(scenario)
