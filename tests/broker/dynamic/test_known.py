"""Which dynamic settings there are."""

from typing import Any

import pytest

from raftmq.broker.dynamic.known import (
    LIVE,
    OF_CLIENTS,
    OF_NODES,
    overlaid,
    values_by_name,
    why_not,
)
from raftmq.broker.settings import NodeSettings, Peer, Settings
from raftmq.machine.catalog.settings import Scope, Setting
from raftmq.pushed import PushedProducer, in_force

SETTINGS = Settings(NodeSettings(1, "c", "data", peers=[Peer(1, "h", 1)])).validate()


def test_each_setting_that_holds_at_once_exists() -> None:
    assert OF_NODES.keys() >= LIVE
    assert {name for name, known in OF_NODES.items() if known.is_live} == LIVE
    assert all(known.is_live for known in OF_CLIENTS.values())


REFUSED = [
    (Scope.CLUSTER, "", "log.retention", 5, "did you mean log.retention_ms?"),
    (Scope.CLUSTER, "", "log.retention_ms", -1, ">= 0"),
    (Scope.CLUSTER, "", "log.retention_ms", "5", "Expected `int`"),
    (Scope.CLUSTER, "", "log.retention_ms", True, "Expected `int`"),
    (Scope.CLUSTER, "", "tls.cert", "x", "in the file of each node"),
    (Scope.CLUSTER, "", "access.is_on", True, "in the file of each node"),
    (Scope.CLUSTER, "", "node.port", 7, "in the file of each node"),
    (Scope.CLUSTER, "", "producer.linger_ms", 5, "of topic or client, not of cluster"),
    (Scope.NODE, "3", "raft.tick_ms", 50, "set it for the cluster"),
    (Scope.NODE, "3", "balance.leaders_ms", 50, "set it for the cluster"),
    (Scope.TOPIC, "t", "log.dead_ms", 50, "of cluster or node, not of topic"),
    (Scope.TOPIC, "t", "raft.tick_ms", 50, "of cluster, not of topic"),
    (Scope.TOPIC, "t", "log.retention_ms", -1, ">= 0"),
    (Scope.CLIENT, "*", "log.retention_ms", 5, "of cluster, node or topic, not of client"),
    (Scope.CLIENT, "*", "producer.linger_ms", 70_000, "<= 60000"),
    (Scope.CLIENT, "*", "producer.is_paused", 1, "Expected `bool`"),
    (Scope.CLIENT, "*", "producer.weights", "1=2", "matching regex"),
    (Scope.CLIENT, "*", "producer.weights", "1", "matching regex"),
    (Scope.CLIENT, "*", "producer.weights", "1=0,", "matching regex"),
]


@pytest.mark.parametrize(("scope", "of", "name", "value", "words"), REFUSED)
def test_a_setting_is_refused_with_what_would_be_right(
    scope: Scope, of: str, name: str, value: Any, words: str
) -> None:
    assert words in why_not([Setting(scope, of, name, value)])
    # Newer software may have put it.
    assert not why_not([Setting(scope, of, name, None)])


@pytest.mark.parametrize("weights", ["", "3=0", "3=0,5=0.5", "101=1.0,2=0.000001"])
def test_weights_are_accepted(weights: str) -> None:
    assert not why_not([Setting(Scope.TOPIC, "t", "producer.weights", weights)])
    shares = PushedProducer(weights=weights).node_weights()
    assert ",".join(f"{node}" for node in shares) == ",".join(
        pair.partition("=")[0] for pair in weights.split(",") if pair
    )


def test_values_go_over_the_file_and_must_fit_together() -> None:
    wanted = overlaid(SETTINGS, {"log.retention_ms": 5, "raft.tick_ms": 50})
    assert (wanted.log.retention_ms, wanted.raft.tick_ms) == (5, 50)
    assert wanted.node == SETTINGS.node
    assert values_by_name(wanted) == values_by_name(SETTINGS) | {
        "log.retention_ms": 5,
        "raft.tick_ms": 50,
    }
    with pytest.raises(ValueError, match="five times"):
        overlaid(SETTINGS, {"raft.heartbeat_ticks": 9})
    with pytest.raises(ValueError, match="does not know"):
        overlaid(SETTINGS, {"raft.later": 9})


def test_the_clients_own_values_go_over_those_of_the_topic_and_of_every_client() -> None:
    every, topic, own = (
        {"producer.linger_ms": 1, "producer.batch_bytes": 10, "producer.is_paused": True},
        {"producer.linger_ms": 2, "producer.batch_bytes": 20},
        {"producer.linger_ms": 3},
    )
    assert in_force(every, topic, own).producer == PushedProducer(3, 20, None, is_paused=True)
    assert in_force() == in_force({"later.x": 1, "producer.linger_ms": "5", "consumer": 1})
