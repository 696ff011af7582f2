"""Random members of topics that come, grow and go at one moment: their queues keep the bound."""

from random import Random
from typing import Any

import pytest
import trio

from raftmq.broker.quotas import pace, wide_changes
from raftmq.broker.quotas.wide_changes import WideChanges
from raftmq.machine.catalog.catalog import Catalog
from raftmq.wire.codec import pack
from raftmq.wire.messages import Admin, FrameKind
from tests.broker.harness import Cluster
from tests.broker.scenario import in_cluster

PLACES_MAX = 60
WORK_MAX = 16
STEPS = 60
AT_ONCE = 6


def change(random: Random, number: int) -> list[Any]:
    """A command about one of three topics."""
    topic, queues = random.choice("abc"), random.randint(1, 20)
    return random.choice(
        [
            ["create_topic", topic, queues],
            ["alter_topic", topic, queues],
            ["delete_topic", topic],
            ["leave", random.randint(1, number)],
            *[["join", topic, "g", number, 60_000, f"i{number}", False, "", "broadcast"]] * 4,
        ]
    )


def most_places(seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most queues that groups with members had together, at any node after any record."""
    monkeypatch.setattr(wide_changes, "PLACES_MAX", PLACES_MAX)
    monkeypatch.setattr(pace, "WORK_MAX", WORK_MAX)
    random, most = Random(seed), 0
    apply = Catalog.apply

    def looked(catalog: Catalog, record: Any) -> Any:
        nonlocal most
        results = apply(catalog, record)
        assignments = catalog.memberships.assignments.values()
        most = max(most, sum(len(each.owners) for each in assignments))
        return results

    async def scenario(cluster: Cluster) -> None:
        await cluster.found("first", 1)
        monkeypatch.setattr(Catalog, "apply", looked)
        async with (
            cluster.client(cluster.leader(0)) as one,
            cluster.client(cluster.leader(0)) as two,
        ):
            for step in range(STEPS):
                commands = [change(random, step * AT_ONCE + n + 1) for n in range(AT_ONCE)]
                requests = [(FrameKind.ADMIN, pack(Admin(each)), ()) for each in commands]
                async with trio.open_nursery() as nursery:
                    # What comes on one connection has its turns in order.
                    nursery.start_soon(one.request_all, *requests[::2])
                    nursery.start_soon(two.request_all, *requests[1::2])

    in_cluster(scenario)
    return most


@pytest.mark.parametrize("seed", range(4))
def test_groups_with_members_keep_their_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    most = most_places(seed, monkeypatch)
    assert PLACES_MAX // 2 < most <= PLACES_MAX


def test_a_leader_that_forgets_changes_under_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WideChanges, "_count", lambda *_: None)
    assert max(most_places(seed, monkeypatch) for seed in range(4)) > PLACES_MAX
