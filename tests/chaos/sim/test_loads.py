"""Nodes count what their open connections hold, and nothing that is gone.

The clients of runs do not leave between a request and a read of the disk for its answer, so the
check sees such clients here.
"""

from collections.abc import Awaitable, Callable

import pytest

from raftmq.broker.quotas.shares import Shares
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.load import Load
from raftmq.broker.settings import Log
from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import World
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.loads import COMPARED, Loads
from raftmq.chaos.sim.run import run
from tests.broker.harness import Cluster, RawClient
from tests.broker.popping import Consumer, with_group
from tests.broker.serve.early_leavers import CACHE_BYTES, ask_for_events, resume

Leave = Callable[[Cluster, RawClient, Consumer], Awaitable[None]]


def seen(leave: Leave) -> Loads:
    """The check, after clients have left early."""

    async def job(cluster: Cluster, client: RawClient, alice: Consumer) -> Loads:
        loads = Loads(cluster)
        await leave(cluster, client, alice)
        loads.end()
        return loads

    found: Loads = with_group(job, log=Log(cache_bytes=CACHE_BYTES))
    return found


def add_what_is_held(load: Load, size: int) -> None:
    """What a connection gives back when it is gone stays counted."""
    if size > 0:
        load.request_bytes += size


@pytest.mark.parametrize(
    ("leave", "is_planted"), [(ask_for_events, False), (resume, False), (resume, True)]
)
def test_bytes_that_a_node_counts_for_those_that_left_are_found(
    leave: Leave, is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_planted:
        monkeypatch.setattr(Load, "add", add_what_is_held)
    loads = seen(leave)
    assert loads.compared[COMPARED] > 0
    assert [violation.name for violation in loads.violations] == ["B7"] * is_planted


def test_each_count_of_a_node_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that is not given back, and a user whose requests stay open."""

    def keep(load: Load, connection: Connection) -> None:
        leave(load, connection)
        if connection.hello is not None and not connection.from_node:
            load.connections += connection.is_closed

    leave = Load.leave
    with monkeypatch.context() as patch:
        patch.setattr(Load, "leave", keep)
        (found,) = seen(ask_for_events).violations
    assert "connections, and its open" in found.text

    def bound(shares: Shares, user: str, requests_max: int) -> None:
        set_bound(shares, user, requests_max)
        if user in shares._shares:
            shares._shares[user].open += 1

    set_bound = Shares.bound
    monkeypatch.setattr(Shares, "bound", bound)
    assert any("open requests of user" in each.text for each in _with_quotas())


def _with_quotas() -> tuple[Violation, ...]:
    plan = Plan(World.SIM, workload="log", seconds=6.0, is_secure=True)
    return run(plan.schedule(4), workload="log", is_secure=True).violations
