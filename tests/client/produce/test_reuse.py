"""Consumers that are opened again, and clients that are made before a fork."""

import os
from random import Random
from typing import Any

import pytest

from raftmq.client.world import RealWorld
from raftmq.errors import RaftmqError
from tests.client.consume.test_consumer import fill
from tests.client.fake_cluster import FakeCluster
from tests.client.popping_cluster import opened

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("options", [{"mode": "pop"}, {}])
async def test_consumer_that_was_open_is_not_opened_again(
    cluster: FakeCluster, options: dict[str, Any]
) -> None:
    """Its settlements would be answered as repeats of earlier ones, and not carried out."""
    fill(cluster, queues=1, messages=2)
    async with opened(cluster) as mq:
        consumer = mq.consumer("orders", group="g", **options)
        async with consumer:
            pass
        with pytest.raises(RaftmqError, match="used once"):
            await consumer.__aenter__()


def test_forked_children_draw_numbers_of_their_own() -> None:
    """Producers of one number would have their messages taken for repeats of each other's."""
    world = RealWorld()

    def drawn_in_a_child() -> bytes:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, b"%d" % world.random.getrandbits(63))
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            return answer.read()

    drawn = {drawn_in_a_child() for _ in range(3)} | {b"%d" % world.random.getrandbits(63)}
    assert len(drawn) == 4


def test_seeded_world_is_not_seeded_again() -> None:
    """A test that brings its own generator keeps it."""
    random = Random(7)
    child = os.fork()
    if not child:
        os._exit(random.getrandbits(32) != Random(7).getrandbits(32))
    assert os.waitpid(child, 0)[1] == 0
