"""A node that knows its users, on a real port, and clients with logins."""

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import raftmq
from raftmq.broker.node import Node
from raftmq.broker.settings import Access, NodeSettings, Peer, Settings, Tls
from raftmq.broker.system_world import RealWorld
from raftmq.errors import OutcomeUnknown, Reason, Rejected
from raftmq.testing import free_ports
from raftmq.tls.authority import Authority
from raftmq.tls.contexts import NodeContexts
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.access import LoggedIn, LogIn
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import PROTOCOL, REPLY, ErrorReply, FrameKind, Hello, Welcome
from tests.tls.certificates import HOST, make_node
from tests.tls.stranger import Stranger

ROOT = "root"
"""The administrator by the node's settings."""
PASSWORD = "correct horse"
"""Of every user."""


class Guarded:
    """A node and its clients."""

    def __init__(self, node: Node, certs: Path) -> None:
        self.node = node
        self.certs = certs
        self.port = node.settings.node.port

    def by_certificate(self, user: str) -> AbstractAsyncContextManager[raftmq.Client]:
        """A client whose certificate names a user."""
        path = self.certs / f"user-{user}.pem"
        if not path.exists():
            Authority(self.certs).issue(CertificateName("c", USER, user), (), days=1.0)
        return raftmq.connect(f"{self._url}&cert={path}", timeout=10)

    def by_login(
        self, login: raftmq.Login | str = ""
    ) -> AbstractAsyncContextManager[raftmq.Client]:
        """A client with a login; empty: without one."""
        return raftmq.connect(self._url, login=login, timeout=10)

    def as_user(self, user: str) -> AbstractAsyncContextManager[raftmq.Client]:
        """A client with a user's password."""
        return self.by_login(raftmq.Login(user, PASSWORD))

    @property
    def context(self) -> ssl.SSLContext:
        """For a stranger that checks nothing and shows no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    @property
    def _url(self) -> str:
        return f"raftmqs://{HOST}:{self.port}?ca={self.certs}/ca.pem"


@asynccontextmanager
async def guarded(folder: Path, *, is_open: bool = False) -> AsyncGenerator[Guarded]:
    """The only node of a cluster, with the administrator `ROOT`."""
    (port,) = free_ports(1)
    certs = folder / "certs"
    files = make_node(certs, 1)
    settings = Settings(
        NodeSettings(
            1, "c", str(folder / "data"), port=port, peers=[Peer(1, HOST, port)], groups=1
        ),
        tls=Tls(*files),
        access=Access(is_on=True, is_open=is_open, admins=[ROOT]),
    )
    node = Node(settings.validate(), RealWorld(NodeContexts(files)))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        yield Guarded(node, certs)
        nursery.cancel_scope.cancel()


def with_guarded(
    scenario: Callable[[Guarded], Awaitable[Any]], folder: Path, **options: Any
) -> None:
    """Run a scenario with such a node."""

    async def main() -> None:
        with trio.fail_after(60):
            async with guarded(folder, **options) as node:
                await scenario(node)

    trio.run(main)


async def make_user(root: raftmq.Client, name: str, *acts: str) -> None:
    """Create a user with `PASSWORD` that may do these acts: `read topic orders`."""
    await root.access.put_user(name, PASSWORD)
    for act in acts:
        await root.access.allow(name, *act.split())


CLIENT = Hello(PROTOCOL, "", 0, "", "stranger")


@asynccontextmanager
async def refused(reason: Reason) -> AsyncGenerator[list[str]]:
    """The block raises `Rejected` for this reason; its text is in the list afterwards."""
    texts: list[str] = []
    with pytest.raises(Rejected) as caught:
        yield texts
    assert caught.value.reason is reason, caught.value
    texts.append(str(caught.value))


async def twice(call: Callable[[], Awaitable[object]]) -> None:
    """Make a call; again, if it was under way when its connection was ended: then it cannot know
    whether it took effect."""
    try:
        await call()
    except OutcomeUnknown:
        await call()


async def greeted(peer: Stranger) -> Welcome:
    """The node's greeting."""
    frame = await peer.ask(FrameKind.HELLO, CLIENT)
    assert frame.kind == FrameKind.HELLO | REPLY
    return unpack(Welcome, frame.header)


async def answer(peer: Stranger, message: LogIn) -> Frame:
    """What a node answers to a message of a login. A busy machine can hold up its disk so long that
    the catalog has no leader for a moment; the node says so, and it is asked again."""
    while True:
        frame: Frame = await peer.ask(FrameKind.LOG_IN, message)
        is_error = frame.kind != FrameKind.LOG_IN | REPLY
        if not is_error or (error := unpack(ErrorReply, frame.header)).code != "unavailable":
            return frame
        await trio.sleep(error.retry_ms / 1000)


async def say(peer: Stranger, message: LogIn) -> LoggedIn:
    """The answer to a message of a login, which is no error."""
    frame = await answer(peer, message)
    assert frame.kind == FrameKind.LOG_IN | REPLY, unpack(ErrorReply, frame.header)
    return unpack(LoggedIn, frame.header)
