"""Transactions from the command line, on a real three-node cluster."""

from collections.abc import Iterator

import anyio
import pytest

import raftmq as mq_package
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        url = cluster.start()
        patch.setenv("RAFTMQ_URL", url)
        yield url


def test_open_transactions_are_listed_and_resolved(url: str, raftmq: CommandLine) -> None:
    raftmq.ok("topic", "create", "orders", "-q", "1")
    assert raftmq.ok("tx", "list", "-o", "json").json == []

    async def leave_open() -> None:
        async with mq_package.connect(url) as mq, mq.producer("orders") as p:
            for note in ("first", "second"):
                await p.transaction(group="shop", note=note).send(note.encode())

    anyio.run(leave_open, backend="trio")
    first, second = raftmq.ok("tx", "list", "-g", "shop", "-o", "json").json
    assert (first["note"], first["messages"], second["note"]) == ("first", 1, "second")
    assert "second" in raftmq.ok("tx", "list").stdout
    assert raftmq.ok("tx", "list", "-g", "other", "-o", "json").json == []
    unsaid = raftmq("tx", "resolve", first["id"])
    assert unsaid.code == 2
    assert "--commit delivers, --rollback throws away" in unsaid.stderr
    raftmq.ok("tx", "resolve", first["id"], "--rollback")
    done = raftmq("tx", "resolve", second["id"], "--commit")
    assert (done.code, done.stderr.strip()) == (0, "delivered: 1 message")
    assert raftmq.ok("consume", "orders", "-n", "1").stdout == "second\n"
    refused = raftmq("tx", "resolve", first["id"], "--commit")
    assert refused.code == 1
    assert "was rolled back before" in refused.stderr
    assert raftmq.ok("tx", "list", "-o", "json").json == []
    assert "no transaction is open" in raftmq.ok("tx", "list").stderr
    unknown = raftmq("tx", "resolve", "t1-5f3a9c", "--commit")
    assert (unknown.code, "no transaction t1-5f3a9c is open" in unknown.stderr) == (1, True)


def test_topic_is_created_beside_another_one(url: str, raftmq: CommandLine) -> None:
    raftmq.ok("topic", "create", "first", "-q", "3")
    raftmq.ok("topic", "create", "turn", "-q", "1")
    raftmq.ok("topic", "create", "second", "-q", "2", "--beside", "first")
    places = {}
    for name in ("first", "second"):
        found = raftmq.ok("topic", "describe", name, "-o", "json").json
        places[name] = [queue["partition_group"] for queue in found["queues"]]
    assert places["second"] == places["first"][:2]
    refused = raftmq("topic", "create", "third", "--beside", "nope")
    assert refused.code == 1
    assert "nope" in refused.stderr
