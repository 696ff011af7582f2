"""Addresses of nodes: accepted ones, refused ones, and the one rule of every entry point."""

import pytest

from raftmq.broker.cluster.reconfiguration import plan
from raftmq.broker.settings import NodeSettings, Peer, Settings
from raftmq.cli.values import ADDRESS
from raftmq.client.address import Address, ClusterUrl, parse_url
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.catalog import Catalog
from raftmq.results import Refused
from raftmq.wire.address import why_no_address
from raftmq.wire.messages import ChangeNode

GOOD = ["10.0.0.4", "node4", "db-4.example.", "my_broker", "::1", "fe80::1%eth0", "x" * 63]
BAD = ["", ".", "a..b", "x" * 64, "é" * 70, "a\0b", "\ud7ff", "a b", "::1::2", "fe80::1%\0", "a/b"]
BAD += [".".join(["x" * 60] * 5)]


@pytest.mark.parametrize("host", GOOD)
def test_address_is_taken(host: str) -> None:
    assert why_no_address(host, 7400) == ""


@pytest.mark.parametrize("host", BAD)
def test_every_door_refuses_a_host_that_no_resolver_takes(host: str) -> None:
    assert "is no host" in why_no_address(host, 7400)
    assert isinstance(plan(ChangeNode("add", 4, host, 7400), Catalog()), Refused)
    with pytest.raises(ValueError, match="not an address"):
        ADDRESS.read(f"{host}:7400")
    with pytest.raises(Rejected) as refused:
        parse_url(f"raftmq://{host if ':' not in host else f'[{host}]'}:7400")
    assert refused.value.reason is Reason.BAD_ARGUMENT
    with pytest.raises(ValueError, match="the address of node 2"):
        settings(Peer(2, host, 7400))


@pytest.mark.parametrize("port", [-1, 0, 65_536, 2**64 - 1])
def test_a_port_has_sixteen_bits(port: int) -> None:
    assert "is no port" in why_no_address("node4", port)


def settings(other: Peer) -> Settings:
    own = Peer(1, "node1", 7400)
    return Settings(NodeSettings(1, "c", "/data", peers=[own, other])).validate()


def test_url_names_the_zone_of_the_client() -> None:
    assert parse_url("raftmq://db,db2?zone=rack%207") == ClusterUrl(
        [Address("db", 7400), Address("db2", 7400)], zone="rack 7"
    )
    assert parse_url("raftmqs://db?zone=a&ca=ca.pem").zone == "a"
    wrong = {
        "raftmq://db?zone=": "zone names no zone",
        "raftmq://db?zone=a&zone=b": "it takes zone=NAME once: zone is given twice",
        "raftmq://db?zonne=a": "there is no 'zonne'; did you mean zone?",
        "raftmq://db?zone=a&ca=ca.pem": "only raftmqs",
        "raftmq://db?zone": "zone names no zone",
    }
    for text, words in wrong.items():
        with pytest.raises(Rejected, match=words):
            parse_url(text)


def test_url_under_tls_names_files_and_no_other_url_does() -> None:
    url = parse_url("raftmqs://db:7000,[::1]?ca=/etc/my%20ca.pem&cert=me.pem")
    assert url == ClusterUrl(
        [Address("db", 7000), Address("::1", 7400)], True, "/etc/my ca.pem", "me.pem"
    )
    assert parse_url("raftmqs://db/") == ClusterUrl([Address("db", 7400)], True)
    wrong = {
        "raftmq://db?ca=ca.pem": "only raftmqs",
        "raftmqs://db?token=abc": "each of ca=FILE.* there is no 'token'; write",
        "raftmqs://db?crt=abc.pem": "there is no 'crt'; did you mean cert?",
        "raftmqs://db?ca=a&key=abc": "there is no 'key'; write",
        "raftmqs://db?abc": "one part is not NAME=VALUE",
        "raftmqs://db?raftmq_abc_abcabcabcabc=x": "one name is not among these",
        "raftmqs://db?ca=": "ca names no file",
        "raftmqs://db?ca=a&ca=b": "ca is given twice",
        "tls://db": "raftmq:// or raftmqs://",
    }
    for text, words in wrong.items():
        with pytest.raises(Rejected, match=words) as refused:
            parse_url(text)
        assert "abc" not in str(refused.value)
