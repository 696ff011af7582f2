"""How blank founders interpret answers, and which commands they advise."""

from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.broker.cluster.admission import why_not_counted
from raftmq.broker.cluster.founders import settings_not_followed, why_apart
from raftmq.broker.settings import NodeSettings, Peer
from raftmq.wire.messages import FoundingView, NodeView, ProbeReply

PEERS = [Peer(number, f"10.0.0.{number}", 7400) for number in (1, 2, 3)]
HINT = "(HOST: its address as the other nodes reach it)"


def blank(host: str, **settings: Any) -> Any:
    """Node 3, in no cluster."""
    own = NodeSettings(3, "c", "/data", host, **settings)
    catalog = SimpleNamespace(is_bootstrapped=False)
    return SimpleNamespace(id=3, settings=SimpleNamespace(node=own), catalog=catalog)


def founded_by(*founders: int, groups: int = 3, moved: int = 0) -> ProbeReply:
    """The answer of a member of a cluster that these nodes founded; one of them moved since."""
    nodes = [NodeView(n, "10.0.1.1" if n == moved else f"10.0.0.{n}", 7400) for n in founders]
    founding = FoundingView(nodes, groups, 3)
    return ProbeReply("", founders=list(founders), founding=founding)


def test_advice_names_the_row_in_peers_and_no_wildcard() -> None:
    own = blank("0.0.0.0", peers=PEERS).settings.node
    assert "`raftmq cluster add 3 10.0.0.3:7400` there" in why_apart(own, 1, founded_by(1, 2))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_node_that_joins_and_listens_everywhere_is_told_that_others_need_an_address(
    host: str,
) -> None:
    text = why_not_counted(blank(host, join=PEERS))
    assert f"`raftmq cluster add 3 HOST:7400` {HINT} makes it a member" in text
    named = why_not_counted(blank("10.0.0.3", join=PEERS))
    assert "`raftmq cluster add 3 10.0.0.3:7400` makes it a member" in named


def test_advice_names_the_zone_and_the_machine_of_the_node() -> None:
    text = why_not_counted(blank("10.0.0.3", join=PEERS, zone="a", machine="m3"))
    assert "`raftmq cluster add 3 10.0.0.3:7400 --zone a --machine m3` makes it" in text


def test_row_in_peers_with_a_wildcard_is_no_address_to_add() -> None:
    node = blank("0.0.0.0", peers=[*PEERS, Peer(4, "0.0.0.0", 7401)])
    known = {n: object() for n in (1, 2, 3)}
    group = SimpleNamespace(founders=[1, 2, 3])
    catalog = SimpleNamespace(is_bootstrapped=True, nodes=known, left={}, groups={0: group})
    node.catalog = catalog
    assert f"`raftmq cluster add 4 HOST:7401` {HINT}" in settings_not_followed(node)


def test_founder_is_held_up_by_what_was_founded_otherwise_and_not_by_a_move() -> None:
    own = blank("10.0.0.3", peers=PEERS).settings.node
    assert not why_apart(own, 1, founded_by(1, 2, 3))
    assert not why_apart(own, 1, founded_by(1, 2, 3, moved=1))
    assert "`groups` is 6 there and 3 here" in why_apart(own, 1, founded_by(1, 2, 3, groups=6))
    text = "`peers` has node 4 at 10.0.0.4:7400 there and not here"
    assert text in why_apart(own, 1, founded_by(1, 2, 3, 4))
