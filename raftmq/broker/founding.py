"""May a blank folder vote? What nodes remember of each other, and the question at the start.

Raft counts on votes and acknowledged records that survive a restart. A node whose disk was wiped
has forgotten both; if it came back as its old self, a majority could vote twice in one term, or a
committed record could be missing from every majority. So each data folder has a random name, the
*incarnation*, and each node durably remembers the name under which it first took a consensus
message from another node.

A blank folder asks all founding peers before it takes part:

| answers | meaning | what follows |
|---|---|---|
| all: "never seen" | the cluster is being founded, or this node never spoke | it founds with them |
| one: "known under another name" | this disk was wiped, or swapped | it stops and says so |
| some are missing | cannot be told apart | it waits |

Invariants:
- A node's name is durable at a peer before that peer takes the first consensus message from it.

Left out: a wiped node that re-enters as a learner by itself.

Sources: openraft's documentation on blank nodes; Raft thesis §4 (membership), whose servers never
lose their disks.
"""

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
import trio

from raftmq.errors import Reason, Unavailable
from raftmq.log.faults import LogFault
from raftmq.log.files import FileSystem
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import ErrorReply, FrameKind, Hello, Probe, ProbeReply

from .connection import Refusal

if TYPE_CHECKING:
    from .node import Node

FILE = "peers.json"

ASK_SECONDS = 0.1
"""Pause between two rounds of asking."""


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
    """Wait until every founding peer has said that it does not know this node otherwise; of the
    nodes that one joins, a majority.

    Cancelling leaves nothing behind. Raises:
        KnownOtherwise: this folder must not take the node's place.
    """
    own = node.settings.node
    peers = {peer.id for peer in own.peers or own.join if peer.id != node.id}
    missing_max = 0 if own.peers or not peers else (len(peers) - 1) // 2
    waiting = set(peers)
    while len(waiting) > missing_max:
        for peer in sorted(waiting):
            known = await _ask(node, peer)
            if known is None:
                continue
            if known not in ("", node.incarnation):
                raise KnownOtherwise(
                    f"node {peer} knew node {node.id} as {known}, but this data folder is new: its "
                    f"disk was wiped or swapped. Give node {node.id} its old folder, or remove it "
                    "from the cluster and add it under a new number"
                )
            waiting.discard(peer)
        if len(waiting) > missing_max:
            await trio.sleep(ASK_SECONDS)


async def _ask(node: "Node", peer: int) -> str | None:
    """What a peer knows of us; None if it cannot be asked now."""
    header = pack(Probe(node.id, node.incarnation))
    try:
        link = node.links.get(peer)
        assert link is not None, f"no link to founding peer {peer}"
        frame = await link.request(FrameKind.PROBE, header)
    except Unavailable:
        return None
    if frame.kind == FrameKind.ERROR:
        return None
    return unpack(ProbeReply, frame.header).known_incarnation
