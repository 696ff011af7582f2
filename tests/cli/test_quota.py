"""`raftmq quota` on a secure cluster, and on one that does not know its users."""

from collections.abc import Iterator

import pytest

from raftmq.cli.access import quota
from raftmq.machine.catalog.quotas import Quota, SubjectKind
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster

process_mark = pytest.mark.process


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The administrator's URL, which the commands of this module use by themselves."""
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        url = cluster.start("-n", "1", "--secure")
        patch.setenv("RAFTMQ_URL", url)
        yield url


@process_mark
def test_a_quota_is_set_listed_and_dropped(url: str, raftmq: CommandLine) -> None:
    set_ = raftmq.ok("quota", "set", "user", "alice", "--write", "10MB/s", "--requests", "5")
    assert "set: the quota of user alice" in set_.stderr
    assert "warning: 5 open requests are few" in set_.stderr
    again = raftmq.ok("quota", "set", "user", "alice", "--write", "10MB/s", "--requests", "5")
    assert "there was already" in again.stderr
    raftmq.ok("quota", "set", "topic", "*", "--read-messages", "500/s")
    found = raftmq.ok("quota", "list", "-o", "json").json
    amounts = dict.fromkeys(Quota.__struct_fields__, 0)
    assert found == [
        {"kind": "topic", "name": "*", **amounts, "read_messages": 500},
        {"kind": "user", "name": "alice", **amounts, "write_bytes": 10_000_000, "requests": 5},
    ]
    table = raftmq.ok("quota", "list", "user").stdout.splitlines()
    assert table[1].split() == ["user", "alice", "10000000", "-", "-", "-", "-", "5", *"----"]
    # The quota of a name and that of `*`, which may hold in its place.
    assert len(raftmq.ok("quota", "list", "topic", "orders").stdout.splitlines()) == 2
    less = raftmq.ok("quota", "set", "user", "alice", "--requests", "8")
    assert "are few" not in less.stderr
    assert "the quota before also had WRITE B/s 10000000: repeat what shall stay" in less.stderr
    raftmq.ok("quota", "drop", "user", "alice")
    refused = raftmq("quota", "drop", "user", "alice")
    assert refused.code == 1
    assert "there is no quota of user alice" in refused.stderr
    raftmq.ok("quota", "drop", "topic", "*")
    assert "no quotas yet" in raftmq.ok("quota", "list").stderr


@process_mark
def test_quota_of_a_name_that_there_is_not_is_set_with_a_warning(
    url: str, raftmq: CommandLine
) -> None:
    raftmq.ok("user", "add", "billing", "--no-password")
    raftmq.ok("topic", "create", "invoices")
    for kind, name, warning in (
        ("user", "billling", "warning: no user billling was added; did you mean billing?\n"),
        ("topic", "invoice", "there is no topic invoice that you may see; did you mean invoices?"),
        ("user", "billing", ""),
        ("topic", "invoices", ""),
        ("user", "*", ""),
    ):
        set_ = raftmq.ok("quota", "set", kind, name, "--write", "10MB/s")
        assert warning in set_.stderr
        assert ("warning" in set_.stderr) is bool(warning)
        raftmq.ok("quota", "drop", kind, name)


@process_mark
def test_a_quota_slows_what_is_sent(url: str, raftmq: CommandLine) -> None:
    raftmq.ok("topic", "create", "slow", "-q", "1")
    raftmq.ok("quota", "set", "topic", "slow", "--write-messages", "10/s")
    for _ in range(3):
        raftmq.ok("produce", "slow", *["x"] * 12)
    status = raftmq.ok("cluster", "status", "-o", "json").stdout
    assert '"throttled_most"' in status
    assert '"slow"' in status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "user", "alice"), "name an amount"),
        (("set", "user", "alice", "--write", "fast"), "10MB/s"),
        (("set", "user", "alice", "--requests", "0"), "0 is not in the range"),
        (("set", "group", "g", "--write", "1MB/s"), "'group' is not one of"),
    ],
)
def test_wrong_usage_is_refused_with_what_is_right(
    raftmq: CommandLine, arguments: tuple[str, ...], words: str
) -> None:
    ended = raftmq("quota", *arguments)
    assert ended.code == 2
    assert words in ended.stderr


@process_mark
def test_an_amount_that_topics_do_not_have_is_refused(url: str, raftmq: CommandLine) -> None:
    ended = raftmq("quota", "set", "topic", "orders", "--connections", "5")
    assert ended.code == 1
    assert "connections is counted by user" in ended.stderr


def test_words_of_the_commands_are_those_of_the_catalog() -> None:
    assert tuple(quota.COLUMNS) == Quota.__struct_fields__
    assert set(quota.KINDS) == {kind.value for kind in SubjectKind}
