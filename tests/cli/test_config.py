"""`raftmq config` on a cluster of one node."""

from collections.abc import Iterator

import pytest

from raftmq.broker.dynamic.known import LIVE, OF_CLIENTS, OF_NODES
from raftmq.cli.config import _split, _value
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster, wait_until


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The cluster's URL, which the commands of this module use by themselves."""
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        url = cluster.start("-n", "1")
        patch.setenv("RAFTMQ_URL", url)
        yield url


@pytest.fixture
def version(url: str, raftmq: CommandLine) -> int:
    """The settings' version when a test begins; nothing is set."""
    # A new cluster takes up the feature level of its nodes a moment after its founding.
    wait_until(
        lambda: raftmq("config", "set", "node", "1", "log.dead_ms=1").code == 0, what="settings"
    )
    raftmq.ok("config", "rollback", "0", "--yes")
    return int(raftmq.ok("config", "get", "-o", "json").json["version"])


@pytest.mark.process
def test_settings_are_set_shown_and_taken_back(version: int, raftmq: CommandLine) -> None:
    set_ = raftmq.ok("config", "set", "cluster", "log.retention_ms=7d", "raft.tick_ms=50")
    assert f"version {version + 1}: cluster has" in set_.stderr
    assert "raft.tick_ms: each node obeys from its next start" in set_.stderr
    quick = raftmq.ok("config", "set", "topic", "orders", "producer.linger_ms=5")
    assert "next start" not in quick.stderr
    rows = raftmq.ok("config", "get").stdout.splitlines()
    assert rows[0] == f"version {version + 2}"
    assert [row.split() for row in rows[2:]] == [
        ["cluster", "log.retention_ms", "604800000", "at", "once"],
        ["cluster", "raft.tick_ms", "50", "from", "the", "next", "start"],
        ["topic", "orders", "producer.linger_ms", "5", "at", "once"],
    ]
    found = raftmq.ok("config", "get", "topic", "orders", "-o", "json").json
    assert found == {
        "version": version + 2,
        "settings": [
            {"scope": "topic", "of": "orders", "name": "producer.linger_ms", "value": 5},
        ],
    }
    differs = raftmq.ok("config", "diff").stdout.splitlines()
    assert [row.split() for row in differs[1:]] == [
        ["log.retention_ms", "cluster:", "604800000", "604800000"],
        ["raft.tick_ms", "cluster:", "50", "100*"],
    ]
    since = raftmq.ok("config", "diff", str(version + 1)).stdout.splitlines()
    assert [row.split() for row in since[1:]] == [
        ["topic", "orders", "producer.linger_ms", "-", "5"]
    ]
    raftmq.ok("config", "unset", "topic", "orders", "producer.linger_ms")
    assert "those of version" in raftmq.ok("config", "diff", str(version + 1)).stderr
    back = raftmq.ok("config", "rollback", str(version), "--yes")
    assert "cluster raft.tick_ms: 50 -> -" in back.stderr
    assert "nothing is set" in raftmq.ok("config", "get").stderr
    changes = raftmq.ok("config", "history", "-n", "2", "-o", "json").lines
    assert [each["version"] for each in changes] == [version + 3, version + 4]
    assert [each["value"] for each in changes[-1]["before"]] == [604_800_000, 50]


@pytest.mark.process
def test_wrong_settings_are_refused_with_the_remedy(version: int, raftmq: CommandLine) -> None:
    for words, text in (
        (("cluster", "log.retention=5"), "did you mean log.retention_ms?"),
        (("topic", "t", "log.dead_ms=5"), "a setting of cluster or node, not of topic"),
        (("node", "x", "log.retention_ms=5"), "not the number of a node"),
    ):
        refused = raftmq("config", "set", *words)
        assert refused.code == 1
        assert text in refused.stderr
    for words, text in (
        (("topic", "producer.linger_ms=5"), "name the topic before the settings"),
        (("topic", "orders"), "name a setting"),
        (("cluster", "log.retention_ms"), "is not NAME=VALUE"),
        (("cluster", "log.retention_ms=5x"), "a duration"),
    ):
        refused = raftmq("config", "set", *words)
        assert refused.code == 2
        assert text in refused.stderr
    assert raftmq("config", "rollback", "9999", "--yes").code == 1
    assert raftmq("config", "rollback", "0").code == 2, "there is no terminal to ask on"
    assert raftmq.ok("config", "get", "-o", "json").json["version"] == version


def test_names_lists_what_can_be_set(raftmq: CommandLine) -> None:
    listed = {row["name"]: row for row in raftmq.ok("config", "names", "-o", "json").json}
    assert listed.keys() == OF_NODES.keys() | OF_CLIENTS.keys()
    at_once = {name for name, row in listed.items() if row["holds"] == "at once"}
    assert at_once == LIVE | OF_CLIENTS.keys()
    assert listed["raft.tick_ms"]["scope"] == "cluster"
    assert listed["producer.linger_ms"]["default"] == "as the program says"
    assert len(raftmq.ok("config", "names", "log.").stdout.splitlines()) < len(listed)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log.retention_ms", "7d", 604_800_000),
        ("log.retention_ms", "1_000", 1000),
        ("limits.copy_bytes_per_second", "10MB/s", 10_000_000),
        ("producer.batch_bytes", "1MiB", 1 << 20),
        ("producer.is_paused", "true", True),
        ("producer.weights", "3=0,5=0.5", "3=0,5=0.5"),
        ("producer.later", "7d", "7d"),
        ("log.retention_ms", "-1", -1),
    ],
)
def test_values_are_read_by_their_form(name: str, text: str, value: object) -> None:
    assert _value(name, text) == value
    assert type(_value(name, text)) is type(value)


def test_words_are_the_scopes_name_and_settings() -> None:
    assert _split("cluster", ["a.b=1"]) == ("", ["a.b=1"])
    assert _split("topic", ["orders.new", "a.b=1"]) == ("orders.new", ["a.b=1"])
