"""The data folders of the other nodes, as a node remembers them beside the catalog.

Each data folder has a random name, its *incarnation*. A node durably remembers the name under which
it first took a consensus message of another node's member (`peers.json`), before it acts on that
message. When a node lost its folder and got a blank one, the catalog gives the new folder the next
*generation*, and the node is another member of its groups from then on.

    {"1": "5f0c…", "4503599627370498": "91ab…", "crc": "8a136aa9"}

Those are node 1, and node 2 in its generation 1. A file that fails its checksum stops the node: a
wrong name in it would have a healthy peer refused for good.

Only the catalog gives generations, so a node that speaks as a higher generation is believed even
where the catalog is not that new yet: the node may be the very leader that brings the catalog. That
costs no safety, as the groups tell the two folders apart by their member ids; and a node that
speaks as a lower generation is refused from then on.

Invariants:
- A member's name is durable here before the first consensus message from it is acted on.
- The generation that is known of a node only ever grows.

Sources: Raft thesis §4 (servers there never lose their disks); epochs that fence off a predecessor,
as in Kafka's controller.
"""

from collections.abc import Callable

import msgspec

from raftmq.broker.replica.group import generation_of, member_id, node_of
from raftmq.broker.serve.connection import Refusal
from raftmq.errors import Reason
from raftmq.log import checked_json
from raftmq.log.faults import LogFault
from raftmq.log.files import FileSystem
from raftmq.machine.catalog.catalog import Catalog
from raftmq.wire.messages import ErrorReply, Hello

from .identity import WrongFolder

FILE = "peers.json"

SUPERSEDED = "superseded"
"""The code of the refusal that ends a node whose data folder was replaced."""


class Superseded(LogFault):
    """Another data folder took the place of this one."""


class PeerIdentities:
    """The data folders of the other nodes, as this one knows them."""

    def __init__(self, files: FileSystem, folder: str, catalog: Callable[[], Catalog]) -> None:
        self._files = files
        self._folder = folder
        self._catalog = catalog
        try:
            known = msgspec.convert(checked_json.read(files, folder, FILE) or {}, dict[str, str])
            self._known = {int(member): name for member, name in known.items()}
        except ValueError as error:
            raise WrongFolder(
                f"{folder}/{FILE} cannot be read: {error}. It names the data folders of the other "
                "nodes: put back a copy, or remove it while they have the folders they had"
            ) from error

    @property
    def is_anyone_known(self) -> bool:
        """Whether any other node's member ever spoke to this one."""
        return bool(self._known)

    def folder_of(self, node: int) -> tuple[int, str]:
        """Generation and name of a node's data folder; (0, ""): it was never seen."""
        member = self._newest(node)
        generation, name = generation_of(member), self._known.get(member, "")
        catalog = self._catalog()
        listed = catalog.nodes.get(node) or catalog.left.get(node)
        if listed is None or not listed.incarnation or (name and generation >= listed.generation):
            return generation, name
        return listed.generation, listed.incarnation

    def is_superseded(self, node: int, generation: int) -> bool:
        """True if by the catalog a node has a newer data folder than the one of a generation."""
        listed = self._catalog().nodes.get(node)
        return listed is not None and listed.generation > generation

    def fault_of(self, node: int, incarnation: str) -> Superseded:
        """Why a data folder that is superseded must not take part."""
        _, other = self.folder_of(node)
        return superseded(node, mine=incarnation, other=other)

    def admit(self, hello: Hello, member: int) -> None:
        """Check the folder of a node before a consensus message from it is acted on.

        The first time, the folder's name is kept durably.

        Args:
            hello: the Hello of the node's connection.
            member: the member id that the node uses.
        Raises:
            Refusal: the node is known under another name, or another folder took its place.
        """
        node = hello.node
        assert node_of(member) == node
        if self.is_superseded(node, generation_of(member)):
            raise self._refusal(hello)
        # All replicas of a folder have its name, in whatever replica generation they are.
        member = member_id(node, generation_of(member))
        if self._known.get(member) == hello.incarnation:
            return
        newest = self._newest(node)
        if newest > member:
            raise self._refusal(hello)
        known = self._known.get(member) or self._listed_name(member)
        if known not in ("", hello.incarnation):
            message = (
                f"node {node} was known as {known} and comes as {hello.incarnation}: "
                "its data folder was swapped. Give it back its folder, or start it with a blank one"
            )
            raise Refusal(ErrorReply(Reason.WRONG_CLUSTER.value, message))
        self._known.pop(newest, None)
        self._known[member] = hello.incarnation
        self._save()

    def _listed_name(self, member: int) -> str:
        """The folder of a node in a generation, by the catalog; empty: the catalog does not say."""
        listed = self._catalog().nodes.get(node_of(member))
        is_same = listed is not None and listed.generation == generation_of(member)
        return listed.incarnation if listed is not None and is_same else ""

    def _refusal(self, hello: Hello) -> Refusal:
        return Refusal(ErrorReply(SUPERSEDED, str(self.fault_of(hello.node, hello.incarnation))))

    def _newest(self, node: int) -> int:
        return max((member for member in self._known if node_of(member) == node), default=0)

    def _save(self) -> None:
        known = {str(member): name for member, name in sorted(self._known.items())}
        checked_json.write(self._files, self._folder, FILE, known)


def superseded(node: int, *, mine: str, other: str) -> Superseded:
    """The fault that ends a node whose data folder was replaced: `mine` is its folder's name,
    `other` the new folder's."""
    return Superseded(
        f"node {node} has another data folder by now, {other}, which took the place of this one, "
        f"{mine}, when this one was taken for lost. Do not start this folder again: its votes and "
        "records no longer count, and the other nodes hold all acknowledged records"
    )
