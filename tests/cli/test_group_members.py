"""Members of a group as commands show them, with real processes, one of which stands still."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster, wait_until

pytestmark = pytest.mark.process

MEMBER = """
import sys, raftmq.blocking
with raftmq.blocking.connect(sys.argv[1]) as mq:
    with mq.consumer("orders", group="g", queues="assigned", session=2.0, instance="other") as c:
        print("ready", flush=True)
        while True:
            c.fetch(100, wait=0.5)
            try:
                c.commit()
            except raftmq.errors.Rejected as error:
                print(error.reason.value, flush=True)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        url = cluster.start()
        patch.setenv("RAFTMQ_URL", url)
        yield url


def queues(raftmq_: CommandLine) -> dict[str, list[int]]:
    """Instance → its queues."""
    found = raftmq_.ok("group", "members", "g", "-o", "json").json
    return {each["instance"]: each["queues"] for each in found}


def test_member_that_stands_still_loses_its_queues_and_is_told(
    url: str, raftmq: CommandLine
) -> None:
    from raftmq import blocking

    raftmq.ok("topic", "create", "orders", "-q", "6")
    with (
        blocking.connect(url) as mq,
        mq.consumer("orders", group="g", queues="assigned", session=2.0, instance="own") as own,
        mq.producer("orders") as producer,
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, url], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: [len(q) for q in queues(raftmq).values()] == [3, 3], what="shares")
        table = raftmq.ok("group", "members").stdout.splitlines()
        assert table[0].split()[:4] == ["GROUP", "TOPIC", "MEMBER", "INSTANCE"]
        assert len(table) == 3
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: own.assignment == tuple(range(6)), what="all queues")
        assert queues(raftmq) == {"own": list(range(6))}
        for number in range(60):
            producer.send_nowait(b"%d" % number, queue=number % 6)
        producer.flush()
        got: list[int] = []
        while len(got) < 60:
            batch = own.fetch(100, wait=10)
            assert batch, got
            got += [int(m.body) for m in batch]
        own.commit()
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: [len(q) for q in queues(raftmq).values()] == [3, 3], what="shares")
        process.kill()
        changes = raftmq.ok("group", "clone", "g", "h", "orders", "-o", "json").json
        assert changes["executed"] is False
        assert {change["after"] for change in changes["changes"]} == {10}
        raftmq.ok("group", "clone", "g", "h", "orders", "--execute")
        assert raftmq.ok("consume", "orders", "-g", "h", "-e").stdout == ""


def test_consume_reads_as_a_member_and_as_an_instance(url: str, raftmq: CommandLine) -> None:
    raftmq.ok("topic", "create", "news", "-q", "3")
    raftmq.ok("produce", "news", "one", "two", "-q", "0")
    member = ("consume", "news", "-g", "m", "--assigned", "-e")
    assert raftmq.ok(*member).stdout == "one\ntwo\n"
    assert raftmq.ok(*member, "--instance", "i").stdout == ""
    refused = raftmq("consume", "news", "-g", "m", "-e", "--from", "earliest", "--instance", "i")
    assert refused.code == 1
    assert "with --assigned too" in refused.stderr
    assert raftmq(*member, "-q", "1").code == 2
    raftmq.ok("group", "create", "b", "--mode", "broadcast")
    for instance in ("i", "j"):
        heard = ("consume", "news", "-g", "b", "--instance", instance, "-e", "--from", "earliest")
        assert raftmq.ok(*heard).stdout == "one\ntwo\n"
        assert raftmq.ok(*heard).stdout == ""
    # As in Python, a new instance hears what comes after it began.
    assert raftmq.ok("consume", "news", "-g", "b", "--instance", "k", "-e").stdout == ""
    lags = raftmq.ok("group", "lag", "b", "-o", "json").json["groups"]
    assert {(each["group"], each["mode"]) for each in lags} >= {("b@i", "broadcast")}
    shown = raftmq.ok("group", "describe", "b").stdout
    assert "b@j" in shown
    assert "attempts" not in shown
    assert raftmq("group", "lag", "nobody").code == 1
    raftmq.ok("group", "create", "popping")
    refused = raftmq("consume", "news", "-g", "popping", "--assigned")
    assert refused.code == 1
    assert "has mode pop: it has neither members" in refused.stderr
    raftmq.ok("group", "reset", "b@i", "news", "--to", "1", "-q", "0", "--execute")
    assert raftmq.ok("consume", "news", "-g", "b", "--instance", "i", "-e").stdout == "two\n"


def test_group_that_read_by_offset_is_deleted_and_begins_anew(
    url: str, raftmq: CommandLine
) -> None:
    raftmq.ok("topic", "create", "bills", "-q", "3")
    raftmq.ok("produce", "bills", "one", "two", "-q", "0")
    for options in (("-g", "reader", "-q", "0"), ("-g", "sharing", "--assigned")):
        name, reading = options[1], ("consume", "bills", *options, "-e")
        assert raftmq.ok(*reading).stdout == "one\ntwo\n"
        assert raftmq.ok(*reading).stdout == ""
        assert name in raftmq.ok("group", "list").stdout
        raftmq.ok("group", "delete", name, "--yes")
        assert name not in raftmq.ok("group", "list").stdout
        assert raftmq("group", "lag", name).code == 1
        assert raftmq("group", "delete", name, "--yes").code == 1
        assert raftmq.ok("consume", "bills", "-g", name, "-q", "0", "-e").stdout == "one\ntwo\n"
