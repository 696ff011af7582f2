"""The cluster under attack: two topics, two groups and two users, of which the attacker has one.

    hidden-topic, hidden-group, ...   of others: names hold `HIDDEN`, contents `SECRET`
    own-topic, own-group, ...         the user `FEW` may use them (`RIGHTS`), and nothing else
    keys of passwords, digests        hold `KEYS`: nobody gets them, administrators neither

Everything is planted frame by frame, as an administrator, so one stage serves both worlds.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import trio

from raftmq.access.rules import Operation, Resource, Rule
from raftmq.batch import encode
from raftmq.machine.catalog.access import KEY_BYTES, PutRule, PutToken, PutUser
from raftmq.machine.catalog.catalog import Command
from raftmq.machine.catalog.consumer_groups import Attach, PutConsumerGroup
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.catalog.subscribers import Subscribe
from raftmq.machine.catalog.topics import CreateTopic
from raftmq.pop.actions import Action
from raftmq.pop.policy import Mode, Policy
from raftmq.tls.local_cluster import ADMIN
from raftmq.wire.assignment import CommitOffsets, QueueOffset
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchFrom
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    REPLY,
    Admin,
    AdminDone,
    ClusterView,
    ErrorReply,
    FrameKind,
    Hello,
    Metadata,
    Produced,
    Welcome,
)
from raftmq.wire.popping import Pop, Popped, Settle, SettleItem
from raftmq.wire.producing import BeginTransaction

from .corpus import Things

HIDDEN, SECRET, KEYS = "hidden7", "secret7", b"keys7"
FEW = "few"
"""The user with few rights."""
RIGHTS = (
    (Resource.TOPIC, Operation.READ),
    (Resource.TOPIC, Operation.WRITE),
    (Resource.GROUP, Operation.ANY),
)
"""What that user may do with things whose names begin with `own-`."""
STRANGER = ""
"""No user."""
STATES = (STRANGER, FEW, ADMIN)
HELLO = Hello(PROTOCOL, "", 0, "", "bystander")
FRAME_BYTES_MAX = 1 << 26
LATER_MS = 3_600_000
"""The delay of the delayed messages."""

Opens = Callable[[str], AbstractAsyncContextManager[trio.abc.Stream]]
"""Opens a connection to the node, with a certificate that names the user; empty: with none."""


class Peer:
    """A client that speaks one frame at a time, and does so rightly."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._parser = FrameParser(FRAME_BYTES_MAX)
        self._correlation = 0

    async def greet(self) -> Welcome:
        """Say Hello."""
        return unpack(Welcome, (await self.ask(FrameKind.HELLO, HELLO)).header)

    async def ask(
        self, kind: FrameKind, header: msgspec.Struct | None = None, body: bytes = b""
    ) -> Frame:
        """The answer to a request, which must not be a refusal."""
        while True:
            self._correlation += 1
            packed = b"" if header is None else pack(header)
            parts = encode_frame(kind, self._correlation, packed, [body])
            await self._stream.send_all(b"".join(parts))
            frame = await self._next()
            if frame.kind == kind | REPLY:
                return frame
            refusal = unpack(ErrorReply, frame.header)
            # The cluster has just been founded, or the change is not known everywhere yet.
            assert refusal.code in ("unavailable", "busy", "not_leader"), refusal
            await trio.sleep(0.05)

    async def change(self, command: Command) -> Any:
        """The result of a change of the catalog."""
        return unpack(AdminDone, (await self.ask(FrameKind.ADMIN, Admin.of(command))).header).result

    async def _next(self) -> Frame:
        while True:
            # One request is under way, so one answer comes at most.
            for frame in list(self._parser.frames()):
                return frame
            data = await self._stream.receive_some(65_536)
            assert data, "the node closed the connection of a client that did nothing wrong"
            self._parser.feed(bytes(data))


async def plant(opens: Opens) -> Things:
    """Fill a new cluster, and tell what an attacker may know of it."""
    async with opens(ADMIN) as stream:
        peer = Peer(stream)
        await peer.greet()
        for user in (FEW, f"{HIDDEN}-user"):
            keys = (KEYS.ljust(KEY_BYTES, b"-"), KEYS.ljust(KEY_BYTES, b"+"))
            await peer.change(PutUser(user, bytes(16), 4096, *keys))
        digest = KEYS.ljust(KEY_BYTES, b"*")
        await peer.change(PutToken(f"{HIDDEN}-user", "a" * 16, digest, note=SECRET))
        for resource, operation in RIGHTS:
            await peer.change(PutRule(Rule(FEW, True, operation, resource, "own-", True)))
        things = Things(
            topics=["own-topic", "own-new", "none", f"{HIDDEN}-topic"],
            groups=["own-group", "own-readers", "none", f"{HIDDEN}-group", f"{HIDDEN}-readers"],
            users=[FEW, "few-friends", f"{HIDDEN}-user", ADMIN],
            queues=[0, 1, 99 << 16],
        )
        for beginning, member in ((HIDDEN, 5), ("own", 6)):
            await _plant_one(peer, things, beginning, member)
        return things


async def _plant_one(peer: Peer, things: Things, beginning: str, member: int) -> None:
    """A topic with everything that can hang on it."""
    topic, group, readers = f"{beginning}-topic", f"{beginning}-group", f"{beginning}-readers"
    secret = SECRET if beginning == HIDDEN else "open"
    await peer.change(CreateTopic(topic, 2))
    view = unpack(ClusterView, (await peer.ask(FrameKind.METADATA, Metadata([topic], True))).header)
    queues = [view.topics[0].id << 16 | number for number in range(2)]
    partition = view.topics[0].groups[0]
    await peer.change(PutConsumerGroup(group, Mode.POP, Policy(invisible_ms=60_000)))
    attachment = (await peer.change(Attach(topic, group, Mode.POP, False)))[0]
    await peer.change(Subscribe(topic, readers, f"color = '{secret}'"))
    await peer.change(JoinGroup(topic, readers, member, 60_000, f"{beginning}-instance"))
    sealed = encode(
        [f"{secret} body".encode()] * 20,
        keys=[f"{secret} key"] * 20,
        tags=[secret] * 20,
        props=[{"color": secret}] * 20,
    )
    now_ms = 0
    for queue in queues:
        frame = await peer.ask(FrameKind.PRODUCE, None, sealed.to_bytes(queue=queue))
        now_ms = unpack(Produced, frame.header).timestamp
    late = encode([secret.encode()], deliver_at_ms=[now_ms + LATER_MS])
    await peer.ask(FrameKind.PRODUCE, None, late.to_bytes(queue=queues[0]))
    commit = CommitOffsets(f"{readers}@x", [QueueOffset(queues[0], 1)], is_reset=True)
    await peer.ask(FrameKind.COMMIT, commit)
    begin = BeginTransaction(partition, 40 + member, f"{beginning}-producers", secret)
    await peer.ask(FrameKind.BEGIN, begin)
    pop = Pop(partition, attachment, member, 4, 0, 0, 1 << 20)
    popped = unpack(Popped, (await peer.ask(FrameKind.POP, pop)).header)
    token = popped.leases[0].token
    reject = SettleItem(Action.REJECT, token, popped.leases[0].base, b"\x01", reason=secret)
    await peer.ask(FrameKind.SETTLE, Settle(partition, attachment, member, 1, [reject]))
    fetch = Fetch([FetchFrom(queues[0], 0)], 0, 1000)
    session = unpack(Fetched, (await peer.ask(FrameKind.FETCH, fetch)).header).session
    things.queues += queues
    things.attachments.append(attachment)
    things.tokens.append(token)
    things.numbers += [member, 40 + member, session]
