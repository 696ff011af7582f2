"""Hostile names at each place where a name comes into the cluster's state or a node's settings.

Groups, instances and producer groups: `tests/broker/serve/test_names.py`.
"""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from raftmq.access.rules import Operation, Resource, Rule
from raftmq.broker.settings import Access, NodeSettings, Peer, Settings, Tls
from raftmq.cli.cert import cert
from raftmq.machine.catalog.access import PutRule, PutToken, PutUser
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Change, Node, Once
from raftmq.machine.catalog.topics import CreateTopic
from raftmq.machine.names import why_no_name
from raftmq.results import Refused
from raftmq.wire.address import why_no_address

from .hostile_names import HOSTILE
from .test_catalog import run

NODE = NodeSettings(1, "c", "d", peers=[Peer(1, "127.0.0.1", 7400)])
"""The settings of a node that are right."""
NO_HOSTS = [name for name in HOSTILE if why_no_address(name, 1)]


def rule(user: str, name: str) -> PutRule:
    return PutRule(Rule(user, True, Operation.READ, Resource.TOPIC, name))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_by_the_rule(name: str) -> None:
    problem = why_no_name(name, "topic")
    assert "is not a topic name" in problem
    assert problem.isprintable()
    assert len(problem) < 1000


@pytest.mark.parametrize("name", HOSTILE)
def test_the_catalog_takes_no_hostile_name_of_a_topic_or_user(name: str) -> None:
    catalog = Catalog()
    run(catalog, Bootstrap([Node(1, "a", 1)], groups=1, replicas=1))
    commands: list[Change] = [
        CreateTopic(name, 1),
        PutUser(name),
        PutToken(name, "a" * 16, bytes(32)),
        rule(name, "t"),
        rule("alice", name),
    ]
    for number, command in enumerate(commands):
        for each in (command, Once(number + 1, command)):
            assert isinstance(run(catalog, each), Refused), command
    assert not catalog.topics
    assert not catalog.access.users


@pytest.mark.parametrize("name", HOSTILE)
def test_settings_take_no_hostile_name_of_a_cluster_or_administrator(name: str) -> None:
    with pytest.raises(ValueError, match="cluster"):
        Settings(msgspec.structs.replace(NODE, cluster=name)).validate()
    tls = Tls("cert", "key", "ca")
    with pytest.raises(ValueError, match=r"access\.admins"):
        Settings(NODE, tls=tls, access=Access(is_on=True, admins=[name])).validate()


@pytest.mark.parametrize("name", NO_HOSTS)
def test_settings_take_no_hostile_host(name: str) -> None:
    peers = [Peer(1, name, 7400)]
    with pytest.raises(ValueError, match="is no host"):
        Settings(msgspec.structs.replace(NODE, peers=peers)).validate()
    with pytest.raises(ValueError, match="is no host"):
        Settings(msgspec.structs.replace(NODE, host=name)).validate()


def test_nearly_all_hostile_names_are_no_hosts() -> None:
    assert set(HOSTILE) - set(NO_HOSTS) <= {"-x"}


@pytest.mark.parametrize("option", ["--cluster", "--user", "--host"])
@pytest.mark.parametrize("name", [name for name in NO_HOSTS if name != "-x"])
def test_no_certificate_is_made_for_a_hostile_name(option: str, name: str, tmp_path: Path) -> None:
    given = {"--cluster": "c", "--node": "1", "--host": "127.0.0.1", option: name}
    if option == "--user":
        del given["--node"]
    words = [word for pair in given.items() for word in pair]
    ended = CliRunner().invoke(cert, ["make", "--dir", f"{tmp_path}/certs", *words])
    assert ended.exit_code == 2, ended.output
