"""Plants of mutants of links and connections.

Their table stands in `tests.quality.mutants.brokers.connections`, which needs no event loop.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import trio

from raftmq.broker import node
from raftmq.broker.cluster import admission, links, peers, reconfiguration, views
from raftmq.broker.cluster.clocks import Clocks
from raftmq.broker.cluster.links import Links
from raftmq.broker.cluster.peer_identities import SUPERSEDED, Superseded
from raftmq.broker.cluster.peers import PeerLink
from raftmq.broker.node import Node
from raftmq.broker.replica.replicas import Replicas
from raftmq.broker.serve import connection, requests
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.load import Load
from raftmq.chaos.mutant import Patch
from raftmq.errors import Unavailable
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import (
    ClusterView,
    ErrorReply,
    FrameKind,
    Hello,
    Metadata,
    Probe,
    ProbeReply,
)


class _Fatal(BaseException):
    """An exception that links do not catch."""


def dies_of_a_name(patch: Patch) -> None:
    """211"""

    async def open_once(link: PeerLink) -> trio.abc.Stream:
        try:
            return await original(link)
        except (OSError, trio.TooSlowError):
            raise
        except Exception as error:
            # Not an `Exception`: the one supervisor would catch that.
            raise _Fatal(f"{type(error).__name__}: {error}") from error

    original = PeerLink._open
    patch.set(PeerLink, "_open", open_once)
    takes_any_address(patch)


def does_not_count_unfinished_bytes(patch: Patch) -> None:
    """212"""

    def count(one: Connection) -> None:
        change, one._held_bytes = one._owed - one._held_bytes, one._owed
        one._load.add(change)

    patch.set(Connection, "_count", count)


def waits_as_long_as_the_kernel(patch: Patch) -> None:
    """213"""
    patch.set(peers, "give_up_after", lambda *_: None)


def remembers_every_guest(patch: Patch) -> None:
    """214"""
    patch.set(Links, "part", lambda links, hello: None)


def believes_who_says_superseded(patch: Patch) -> None:
    """215"""

    def refused(links: Links, reply: ErrorReply) -> None:
        if reply.code == SUPERSEDED:
            links._node.fail(Superseded(reply.message))

    patch.set(Links, "_refused", refused)


def gives_a_place_to_everybody(patch: Patch) -> None:
    """216"""

    def take_place(load: Load, one: Connection) -> bool:
        load.connections += 1
        load.silent[one] = None
        one.has_place = True
        return True

    patch.set(Load, "take_place", take_place)


def trusts_answers(patch: Patch) -> None:
    """217"""

    async def ask(link: PeerLink, kind: int, question: Any, answer: Any, body: Any = ()) -> Any:
        frame = await link.request(kind, pack(question), body)
        return unpack(answer, frame.header), frame.body

    patch.set(PeerLink, "ask_with_body", ask)
    # Only guests answer so, and no node asks guests.
    patch.set(Links, "members", Links.all)


def takes_any_address(patch: Patch) -> None:
    """218"""
    for module in (connection, reconfiguration, requests):
        patch.set(module, "why_no_address", lambda host, port: "")


def links_back_to_itself(patch: Patch) -> None:
    """219"""

    def meet(links: Links, hello: Hello) -> None:
        original(links, hello)
        if hello.node == links._node.id:
            links._met[hello.node] += 1
            links._guests[hello.node] = None

    def part(links: Links, hello: Hello) -> None:
        if hello.node == links._node.id and hello.node in links._guests:
            links._end(hello.node)
        parted(links, hello)

    original, parted = Links.meet, Links.part
    patch.set(Links, "meet", meet)
    patch.set(Links, "part", part)


def clocks_read_answers(patch: Patch) -> None:
    """231"""

    async def ask(clocks: Clocks, link: PeerLink) -> None:
        probe = Probe(clocks._node.id, clocks._node.incarnation)
        with suppress(Unavailable):
            frame = await link.request(FrameKind.PROBE, pack(probe))
            now = trio.current_time()
            shown = unpack(ProbeReply, frame.header).now_ms
            clocks._leads[link.peer.id] = now, shown - now * 1000

    patch.set(Clocks, "_ask", ask)
    patch.set(Links, "members", Links.all)


def asks_guests_whether_it_may_take_part(patch: Patch) -> None:
    """232"""
    patch.set(node, "wait_admitted", _believing_guests(admission.wait_admitted))


def asks_guests_for_its_member_id(patch: Patch) -> None:
    """233"""
    patch.set(Replicas, "_open_system", _believing_guests(Replicas._open_system))


def _believing_guests(wait: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A step of a node's start, in which guests are asked as members are, and before these."""

    async def step(of: Node | Replicas, *args: Any) -> None:
        links = (of._node if isinstance(of, Replicas) else of).links

        def guests_first() -> list[PeerLink]:
            return links.all()[::-1]

        with mock.patch.object(links, "members", guests_first):
            await wait(of, *args)

    return step


def asks_guests_for_tables(patch: Patch) -> None:
    """234"""

    async def ask(node: Node) -> dict[int, ClusterView]:
        found = {0: views.view(node, [])}
        for link in node.links.all():
            with trio.move_on_after(1), suppress(Unavailable):
                found[link.peer.id] = await link.ask(FrameKind.METADATA, Metadata([]), ClusterView)
        return found

    patch.set(links, "ask_all", ask)


def asks_guests_whether_it_was_replaced(patch: Patch) -> None:
    """235"""

    async def confirm(links: Links) -> None:
        for link in links.all():
            with trio.move_on_after(1):
                await links._ask_for_folder(link)
        links._is_confirming = False

    patch.set(Links, "_confirm", confirm)


def asks_its_settings_alone(patch: Patch) -> None:
    """236"""

    async def introduce(links: Links) -> None:
        pass

    patch.set(Links, "introduce", introduce)
