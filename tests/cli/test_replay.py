"""`raftmq topic replay` with real processes."""

from collections.abc import Iterator

import pytest

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


def test_exactly_the_range_is_sent_to_the_other_topic_in_order(
    url: str, raftmq: CommandLine
) -> None:
    from raftmq import blocking

    raftmq.ok("topic", "create", "orders", "-q", "3")
    raftmq.ok("topic", "create", "again", "-q", "2")
    with blocking.connect(url) as mq:
        with mq.producer("orders") as producer:
            for queue in range(3):
                bodies = [b"%d-%d" % (queue, n) for n in range(2500)]
                keys = [f"k{n}" for n in range(2500)]
                producer.send_many(bodies=bodies, keys=keys, tags=["t"] * 2500, queue=queue)
        wanted = ("topic", "replay", "orders", "again", "--from", "100", "--until", "2300")
        dry = raftmq.ok(*wanted, "-o", "json").json
        assert (dry["executed"], dry["messages"]) == (False, 6600)
        assert [each["end"] for each in raftmq.ok(
            "topic", "describe", "again", "-o", "json"
        ).json["queues"]] == [0, 0]  # fmt: skip
        assert raftmq.ok(*wanted, "--execute", "-o", "json").json == dry | {"executed": True}
        found: dict[int, list[tuple[bytes, str | None, str | None]]] = {0: [], 1: []}
        with mq.consumer("again") as consumer:
            while sum(map(len, found.values())) < 6600:
                for message in consumer.fetch(1000, wait=5.0):
                    found[message.queue].append((message.body, message.key, message.tag))
            assert not consumer.fetch(1, wait=0.2)
    rows = {q: [(b"%d-%d" % (q, n), f"k{n}", "t") for n in range(100, 2300)] for q in range(3)}
    assert found == {0: rows[0] + rows[2], 1: rows[1]}


def test_only_what_is_asked_for_is_replayed(url: str, raftmq: CommandLine) -> None:
    raftmq.ok("topic", "create", "few", "-q", "2")
    raftmq.ok("topic", "create", "few-again", "-q", "2")
    raftmq.ok("produce", "few", "a", "b", "c", "-q", "1")
    wanted = ("topic", "replay", "few", "few-again", "--from", "1", "-o", "json")
    done = raftmq.ok(*wanted, "-q", "1", "--execute").json
    assert done["queues"] == [{"queue": 1, "start": 1, "stop": 3, "target": 1}]
    assert raftmq.ok(*wanted, "-q", "0").json["messages"] == 0
    assert raftmq("topic", "replay", "few", "few", "--from", "0").code == 2
