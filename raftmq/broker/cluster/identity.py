"""The owner of a data folder: cluster, node, and the folder's own random name.

`node.json` is written when the folder is first used, and again when the cluster has let the node
take part (`admission`). The file has a checksum, as a folder with another name is another member.

The *incarnation* is a random name of the folder: if a disk is wiped, the node comes back with
another incarnation, and the rest of the cluster can tell that this is not the member whose votes
and acks it counted. The loss of a single group's log is found as well (`replicas`).
"""

from random import Random

import msgspec

from raftmq.broker.settings import NodeSettings
from raftmq.log import checked_json
from raftmq.log.faults import LogFault
from raftmq.log.files import FileSystem, Lock

FILE = "node.json"
FORMAT = 1
"""Version of the data folder's layout."""


class Identity(msgspec.Struct, frozen=True):
    """The content of `node.json`."""

    format: int
    """Version of the folder's layout."""
    cluster: str
    """The cluster's id."""
    node: int
    """The node's number."""
    incarnation: str
    """Random name of this folder."""
    is_admitted: bool = True
    """False until the cluster has let this folder take part."""
    generation: int = 0
    """Number of data folders of this node that were lost before this one."""
    replicas: dict[int, int] = {}
    """By partition group: the replica generation of the newest log that was opened here."""


class WrongFolder(LogFault):
    """The data folder belongs to another node or to other software, or cannot be read."""


class NoFolder(LogFault):
    """The data folder cannot be made or used."""

    def __init__(self, folder: str, why: str) -> None:
        super().__init__(
            f"the data folder {folder} cannot be used: {why}. Let this user make it and write to "
            "it, or name another in node.data"
        )
        self.why = why
        """The operating system's error."""


def lock_folder(files: FileSystem, folder: str) -> Lock:
    """Make a node's data folder if it is not there, and hold it.

    Raises:
        NoFolder: the name leads to no folder that this process may write to.
        FolderLocked: another process holds it.
    """
    try:
        files.make_folder(folder)
        return files.lock(folder)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
        raise NoFolder(folder, str(error)) from error


def new_identity(cluster: str, node: int, random: Random) -> Identity:
    """An identity for a blank folder; nothing is written yet."""
    return Identity(FORMAT, cluster, node, f"{random.getrandbits(64):016x}", is_admitted=False)


def take_up(files: FileSystem, own: NodeSettings, random: Random) -> Identity:
    """The identity of a node's folder; a blank folder gets one, durably. Raises as `load`."""
    identity = load(files, own.data, cluster=own.cluster, node=own.id)
    if identity is None:
        identity = new_identity(own.cluster, own.id, random)
        save(files, own.data, identity)
    return identity


def load(files: FileSystem, folder: str, *, cluster: str, node: int) -> Identity | None:
    """The folder's identity; None if the folder is blank.

    Raises:
        WrongFolder: the folder is another node's or cluster's, of a newer format, or it re-entered
            under software whose member ids had another form.
    """
    try:
        fields = checked_json.read(files, folder, FILE)
        if fields is None:
            return None
        # The process that wrote the file may have been killed before the name was durable.
        files.sync_folder(folder)
        identity = msgspec.convert(fields, Identity, strict=False)
    except ValueError as error:
        raise WrongFolder(
            f"{folder}/{FILE} cannot be read: {error}. The file names the folder's node: put a "
            "copy back, or start the node with a blank folder, which the others fill"
        ) from error
    if identity.format > FORMAT:
        raise WrongFolder(f"{folder} has format {identity.format}; this software knows {FORMAT}")
    if (identity.cluster, identity.node) != (cluster, node):
        raise WrongFolder(
            f"{folder} belongs to node {identity.node} of cluster {identity.cluster!r}, not to "
            f"node {node} of {cluster!r}: give this node a folder of its own"
        )
    # Before there were replica generations, a member's id had the node's generation in their bits:
    # opened under today's id, this node is in no group's membership and would only look alive.
    if identity.generation and "replicas" not in fields:
        raise WrongFolder(
            f"node {node} has re-entered under older software, and its member ids have another "
            f"form since: {folder} cannot be taken over as it is. See docs/operations.md, "
            "'Data of older software'"
        )
    return identity


def save(files: FileSystem, folder: str, identity: Identity) -> None:
    """Write the identity of a folder; durable on return."""
    checked_json.write(files, folder, FILE, msgspec.to_builtins(identity, str_keys=True))
