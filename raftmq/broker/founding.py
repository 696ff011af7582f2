"""May a blank folder vote? What nodes remember of each other, and the question at the start.

Raft counts on votes and acknowledged records that survive a restart. A node whose disk was wiped
has forgotten both; if it came back as its old self, a majority could vote twice in one term, or a
committed record could be missing from every majority. So each data folder has a random name, the
*incarnation*, and each node durably remembers the name under which it first took a consensus
message from another node.

A blank folder asks before it takes part: a founding node all other founders, a node that joins
later everybody it has a link to.

| answers | meaning | what follows |
|---|---|---|
| all founders: "never seen" | the cluster is being founded, or this node never spoke | it founds |
| the system group's leader: "never seen" | nothing counts on this node yet | it joins |
| one: "known under another name" | this disk was wiped, or swapped | it stops and says so |
| others are missing | cannot be told apart | it waits |

The leader's word is enough because the catalog names each node's folder, and a group takes a node
in only after that. The nodes that the settings of one that joins name may be gone for good.

Invariants:
- A node's name is durable at a peer before that peer takes the first consensus message from it.
- A blank folder's name is durable before anybody hears it: a restart while it waits keeps it.

Left out: a wiped node that re-enters as a learner by itself.

Sources: openraft's documentation on blank nodes; Raft thesis §4 (membership), whose servers never
lose their disks.
"""

import json
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
import trio

from raftmq.errors import Reason, Unavailable
from raftmq.log.faults import LogFault
from raftmq.log.files import FileSystem
from raftmq.pop.catalog import SYSTEM_GROUP
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply, FrameKind, Hello, Probe, ProbeReply

from .connection import Connection, Refusal
from .peers import PeerLink

if TYPE_CHECKING:
    from .node import Node

FILE = "peers.json"

ASK_SECONDS = 0.1
"""Pause between two rounds of asking."""

ANSWER_SECONDS_MAX = 2.0
"""A peer that has not answered after so long is asked again in the next round."""


class KnownOtherwise(LogFault):
    """A peer knew this node under another incarnation: its disk was wiped or swapped."""


class Acquaintances:
    """The incarnations of the other nodes, as this one first met them; kept in `peers.json`."""

    def __init__(self, files: FileSystem, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._path = str(PurePosixPath(folder) / FILE)
        self._known: dict[int, str] = {}
        if FILE in files.list(folder):
            file = files.open(self._path)
            known = msgspec.json.decode(file.pread(file.size(), 0), type=dict[str, str])
            file.close()
            self._known = {int(node): name for node, name in known.items()}

    def known(self, node: int) -> str:
        """The incarnation under which a node is known; empty: never met."""
        return self._known.get(node, "")

    def admit(self, hello: Hello) -> None:
        """A node is about to tell us something about consensus: is it the one we know?

        Its name is kept, durably, the first time. Raises `Refusal` if it is known under another.
        """
        known = self._known.get(hello.node)
        if known is None:
            self._remember(hello.node, hello.incarnation)
        elif known != hello.incarnation:
            message = (
                f"node {hello.node} was known as {known} and comes as {hello.incarnation}: its "
                "data folder was wiped or swapped. Give it back its folder, or remove it "
                "from the cluster and add it under a new number"
            )
            raise Refusal(ErrorReply(Reason.WRONG_CLUSTER.value, message))

    def _remember(self, node: int, incarnation: str) -> None:
        self._known[node] = incarnation
        text = json.dumps({str(other): name for other, name in sorted(self._known.items())})
        file = self._files.create(self._path + ".new")
        file.append([text.encode() + b"\n"])
        file.datasync()
        file.close()
        self._files.rename(self._path + ".new", self._path)
        self._files.sync_folder(self._folder)


async def wait_allowed(node: "Node") -> None:
    """Wait until this blank folder may take part.

    Cancelling leaves nothing behind. Raises:
        KnownOtherwise: this folder must not take the node's place.
    """
    founders = {peer.id for peer in node.settings.node.peers}
    waiting = founders - {node.id}
    while waiting or not founders:
        for link in node.links.all():
            reply = await _ask(node, link, joins=not founders)
            if reply is None:
                continue
            if reply.known_incarnation not in ("", node.incarnation):
                raise KnownOtherwise(
                    f"node {link.peer.id} knew node {node.id} as {reply.known_incarnation}, but "
                    f"this data folder is new: its disk was wiped or swapped. Give node {node.id} "
                    "its old folder, or remove it from the cluster and add it under a new number"
                )
            if reply.is_latest:
                return
            waiting.discard(link.peer.id)
        if waiting or not founders:
            await trio.sleep(ASK_SECONDS)


def answer_probe(node: "Node", connection: Connection, frame: Frame) -> None:
    """Say what is known here of the node that asks."""
    probe = unpack(Probe, frame.header)

    def answer(*, is_latest: bool) -> None:
        header = pack(ProbeReply(node.incarnation_of(probe.node), is_latest, node.may_lead))
        connection.reply(frame.kind, frame.correlation, header)

    if probe.joins and node.is_serving:
        node.groups[SYSTEM_GROUP].read(lambda error: answer(is_latest=error is None))
    else:
        answer(is_latest=False)


async def _ask(node: "Node", link: PeerLink, *, joins: bool) -> ProbeReply | None:
    """What a peer knows of us; None if it does not say."""
    header = pack(Probe(node.id, node.incarnation, joins))
    with trio.move_on_after(ANSWER_SECONDS_MAX):
        with suppress(Unavailable):
            frame = await link.request(FrameKind.PROBE, header)
            if frame.kind != FrameKind.ERROR:
                return unpack(ProbeReply, frame.header)
    return None
