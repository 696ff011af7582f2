"""All settings of a node, as frozen structs: what each one means, its unit, and its default.

A TOML file has one table a struct (`[node]`, `[raft]`, `[log]`, `[limits]`, `[tls]`, `[access]`,
`[balance]`, `[directory]`); `raftmq serve -c FILE` reads it. Nothing else in the broker reads the
environment or a global.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from raftmq.machine.names import why_no_name, why_no_place
from raftmq.wire.address import why_no_address

Positive = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
WILDCARDS = ("0.0.0.0", "::")
"""Hosts that mean all addresses of a machine."""
REPLICAS = 3
"""Copies of a data group if the settings do not say."""
KIB, MIB, GIB = 1024, 1024**2, 1024**3


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address of one node."""

    id: Positive
    """The node's number."""
    host: str
    """The host at which nodes and clients reach the node."""
    port: Port
    """The node's native port."""


class Raft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pace of consensus; the same on all nodes."""

    tick_ms: Annotated[int, Meta(ge=5, le=10_000)] = 100
    """Length of a tick in milliseconds. Heartbeats and elections count in ticks."""
    heartbeat_ticks: Positive = 2
    """Ticks between a leader's heartbeats."""
    election_ticks: Positive = 10
    """A follower that hears nothing for this long, up to twice as long, starts an election. At
    least five times `heartbeat_ticks`, so that a short pause of the leader does not depose it."""
    inflight_messages_max: Positive = 256
    """Appends a leader sends to a follower before it waits for an answer."""
    inflight_bytes_max: Positive = 64 * MIB
    """Bytes of these appends; bounds how far the leader sends ahead to a slow follower. Over all
    groups `limits.peer_bytes_max` bounds what waits at the leader's node, and
    `limits.unwritten_bytes_max` what waits at the follower's."""
    message_bytes_max: Positive = 1 * MIB
    """Bytes of records packed into one append, unless one record alone is larger."""
    uncommitted_bytes_max: Positive = 64 * MIB
    """Bytes of uncommitted records that a leader holds; beyond, producers get `busy`."""
    committed_bytes_max: Positive = 16 * MIB
    """Bytes of committed records applied in one go; bounds how long the event loop is held."""


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The segmented log of each partition group."""

    segment_bytes: Annotated[int, Meta(ge=64 * KIB)] = 64 * MIB
    """A segment that reaches this size is sealed and a new one begun. Retention, snapshots and
    derived indexes go by whole segments."""
    retention_ms: Annotated[int, Meta(ge=0)] = 3 * 24 * 3600 * 1000
    """Segments whose newest record is older are dropped; 0 keeps them for ever. A topic may have
    another time (`raftmq config set topic`)."""
    retention_bytes: Annotated[int, Meta(ge=0)] = 0
    """The oldest segments of a group are dropped above this size; 0 sets no bound."""
    dead_ms: Annotated[int, Meta(ge=0)] = 7 * 24 * 3600 * 1000
    """Segments that hold messages of dead letters, and those after them, stay for this much longer
    than `retention_ms`, or until the letters are redriven or purged; 0: no longer."""
    dead_bytes: Annotated[int, Meta(ge=0)] = 1 * GIB
    """The most bytes of a group that are kept for dead letters; 0: none."""
    scrub_bytes_per_second: Annotated[int, Meta(ge=0)] = 1 * MIB
    """How fast sealed segments are read and checked in the background, so that rot is found while
    other copies are sound; 0: never."""
    cache_bytes: Annotated[int, Meta(ge=MIB)] = 64 * MIB
    """Bytes of recent records each group keeps in memory for followers and readers near the end;
    less if a group's equal share of `limits.cache_bytes_max` is less."""
    reserve_bytes: Annotated[int, Meta(ge=0)] = 64 * MIB
    """When the disk has fewer free bytes, the node takes no messages and hands over its groups'
    leadership; votes and upkeep need the space. 0: only when a write fails."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Upper bounds; at each of them the node pushes back, and never drops acknowledged messages."""

    batch_bytes_max: Annotated[int, Meta(ge=1 * KIB, le=32 * MIB)] = 16 * MIB
    """Bytes of one batch of messages."""
    frame_bytes_max: Annotated[int, Meta(ge=8 * MIB, le=64 * MIB)] = 40 * MIB
    """Bytes of one frame on a connection: at least 8 MiB, as a routing table takes up to 4 MiB, and
    64 KiB more than twice `batch_bytes_max` and than `raft.message_bytes_max`."""
    connections_max: Positive = 4_096
    """Accepted connections of clients; the next one gets `busy` and is closed. Nodes have 64 more;
    all together take at most half of the process's descriptors."""
    address_connections_max: Positive = 2_048
    """Accepted connections of clients from another machine, by its address (of IPv6 its first 64
    bits), and at most half of all places, so that no machine takes all; the next one gets `busy`
    and is closed."""
    connection_requests_max: Positive = 1_024
    """Requests of one connection that wait for an answer; then the node stops reading from it."""
    connection_bytes_max: Positive = 32 * MIB
    """Bytes of one connection's waiting requests, and of its unsent answers; then the node stops
    reading from it."""
    requests_bytes_max: Positive = 256 * MIB
    """Bytes of unfinished and waiting requests and of unsent answers over all connections; then the
    node stops reading from connections that hold more than their share, and the others go on."""
    cache_bytes_max: Annotated[int, Meta(ge=MIB)] = 1 * GIB
    """Bytes of recent records in memory over all groups of the node, in equal shares that are set
    each second; a group's newest record is kept in any case."""
    peer_bytes_max: Positive = 64 * MIB
    """Unsent bytes to one peer; then Raft messages to it are dropped, which Raft expects."""
    unwritten_bytes_max: Positive = 256 * MIB
    """Bytes of records from leaders that wait for this node's disk, over all groups; then more are
    dropped, which Raft expects, and come again when the disk has caught up."""
    copy_bytes_per_second: Annotated[int, Meta(ge=0)] = 64 * MIB
    """How fast this node copies logs to nodes that shall carry a group, over all groups that it
    leads, so that the work goes on beside it; 0: without a bound."""
    fetch_wait_ms_max: Positive = 60_000
    """The longest a fetch may wait for messages."""
    fetch_bytes_max: Positive = 16 * MIB
    """A fetch adds no batch after its answer has reached this size, so an answer is at most one
    batch larger."""
    fetch_session_queues_max: Positive = 262_144
    """Queues in all fetch sessions of the node, each at most 768 bytes; a session counts as at
    least two queues. Beyond, sessions idle for two minutes are forgotten; if none is idle, a
    consumer sends all its queues with each fetch."""


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The certificates of a node. Without them its connections are plain: whoever reaches the port
    reads and writes."""

    cert: str = ""
    """Path of the node's certificate (PEM), which names the node and its cluster; `raftmq cert
    make` makes it. With it all connections to the node and between nodes are under TLS. `{node}` in
    the path is the node's number."""
    key: str = ""
    """Path of its private key (PEM); `{node}` as in `cert`."""
    ca: str = ""
    """Path of the authorities (PEM) that sign the certificates of nodes and clients."""
    crl: str = ""
    """Path of the lists of revoked certificates (PEM), one of each authority; empty: none is
    revoked."""
    client_certs: bool = False
    """Refuse clients that show no certificate."""


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may do what. Without it everybody who reaches the port may do everything; with TLS and
    `tls.client_certs`, everybody who has a certificate."""

    is_on: bool = False
    """True: each client has to say who it is, by a certificate that names a user, a password or a
    token, and may do what the rules of access allow. It needs TLS, and holds on all nodes alike."""
    is_open: bool = False
    """True: what no rule decides is allowed; False: it is denied."""
    admins: list[str] = []
    """Users that may do everything, whatever the rules say: the first ones, who make the rules."""
    is_given_up: bool = False
    """True: everybody may do everything at this node, also where there are users and rules, or
    other nodes have access on. Without it a node whose access is off serves no client there."""


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node."""

    id: Positive
    """The node's number, unique in the cluster. With `raftmq serve --nodes` the machine's number,
    from 1 to 99: its nodes are this one, 100 more, 200 more and so on."""
    cluster: Annotated[str, Meta(min_length=1, max_length=64)]
    """The cluster's id, a name as those of topics; nodes of another cluster are refused."""
    data: str
    """The data folder; it belongs to this node alone. With `raftmq serve --nodes` the folder in
    which each node of the machine has its own, `node-NUMBER`."""
    host: str = "127.0.0.1"
    """The address to listen on, and the one the other nodes and clients use."""
    port: Port = 7400
    """The native port. With `raftmq serve --nodes` that of the machine's first node; the others
    have the next ones."""
    peers: list[Peer] = []
    """The founding nodes, this one among them; empty on a node that joins later. With `raftmq serve
    --nodes` each node has a row, and nodes of the machine without one join later."""
    join: list[Peer] = []
    """On a node that joins later: some nodes of the cluster."""
    groups: Annotated[int, Meta(ge=1, le=4_096)] = 3
    """Data groups the cluster is founded with: as many as nodes, or a multiple, so that each node
    leads as many as the others. Only read when the cluster is founded."""
    replicas: Annotated[int, Meta(ge=1, le=9)] = REPLICAS
    """Copies of each data group: three, or one on each founding node if these are fewer. More than
    three need as many founding nodes. Only read when the cluster is founded."""
    zone: str = ""
    """The rack, room or data centre that this node is lost with; empty: not said. The replicas of a
    group are put into different zones, as far as there are zones."""
    machine: str = ""
    """The machine, if it runs several nodes: two replicas of a group are put on one machine only if
    there are too few others. Empty: this node has a machine of its own. With `raftmq serve --nodes`
    it is the name of the host if not given."""
    level_max: Annotated[int, Meta(ge=0)] = 0
    """The highest feature level that this node allows; 0: that of its software. Set it to the
    cluster's level with the newer software to be able to go back to the older one, and take it out
    to end the upgrade."""
    disks: list[str] = []
    """Further folders for the nodes of `raftmq serve --nodes`, each on a disk of its own: new nodes
    are put into `data` and these in turn."""


class Balance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster replaces absent nodes and evens out leaders by itself; the same on all nodes.
    `raftmq cluster balance` does the rest when an operator wants it."""

    leaders_ms: Annotated[int, Meta(ge=0)] = 0
    """How often leaderships are evened out by what is written to the groups; no copy moves. 0:
    never."""
    absent_ms: Annotated[int, Meta(ge=0)] = 0
    """A node that does not answer the system group's leader for this long is absent: other nodes
    get its copies, and it gets none until it answers again. 0: never; an operator removes or
    replaces it."""


class Directory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Soft state of the cluster: who is connected where, rates, leases; the same on all nodes."""

    is_on: bool = True
    """False: the nodes keep no directory."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's whole file of settings."""

    node: NodeSettings
    raft: Raft = Raft()
    log: Log = Log()
    limits: Limits = Limits()
    tls: Tls = Tls()
    access: Access = Access()
    balance: Balance = Balance()
    directory: Directory = Directory()

    def validate(self) -> "Settings":
        """This object, if its parts fit together.

        Raises:
            ValueError: two settings contradict each other; the message names both.
        """
        node, raft, limits = self.node, self.raft, self.limits
        _require(
            raft.election_ticks >= 5 * raft.heartbeat_ticks,
            f"raft.election_ticks ({raft.election_ticks}) must be at least five times "
            f"raft.heartbeat_ticks ({raft.heartbeat_ticks})",
        )
        _require(
            limits.frame_bytes_max >= 2 * limits.batch_bytes_max + 64 * KIB,
            f"limits.frame_bytes_max ({limits.frame_bytes_max}) must be at least twice "
            f"limits.batch_bytes_max ({limits.batch_bytes_max}) and 64 KiB",
        )
        _require(
            # A longer append closes the connection each time, and its follower never catches up.
            limits.frame_bytes_max >= raft.message_bytes_max + 64 * KIB,
            f"limits.frame_bytes_max ({limits.frame_bytes_max}) must be at least "
            f"raft.message_bytes_max ({raft.message_bytes_max}) and 64 KiB",
        )
        _require(
            raft.inflight_bytes_max >= raft.message_bytes_max,
            f"raft.inflight_bytes_max ({raft.inflight_bytes_max}) must be at least "
            f"raft.message_bytes_max ({raft.message_bytes_max})",
        )
        problem = why_no_name(node.cluster, "cluster")
        _require(not problem, f"node.cluster: {problem}")
        for name, value in (("zone", node.zone), ("machine", node.machine)):
            problem = why_no_place(value)
            _require(not problem, f"node.{name}: {problem}")
        self._validate_access()
        election_ms = 2 * raft.election_ticks * raft.tick_ms
        _require(
            not 0 < self.balance.absent_ms < election_ms,
            f"balance.absent_ms ({self.balance.absent_ms}) must be 0 or at least {election_ms}, "
            "within which an election may end",
        )
        _require(
            bool(node.peers) != bool(node.join),
            "exactly one of node.peers (a founding node) and node.join (a later one) is needed",
        )
        for peer in (Peer(node.id, node.host, node.port), *node.peers, *node.join):
            problem = why_no_address(peer.host, peer.port)
            _require(not problem, f"the address of node {peer.id}: {problem}")
        if node.peers:
            ids = [peer.id for peer in node.peers]
            _require(len(set(ids)) == len(ids), f"node.peers names an id twice: {ids}")
            _require(node.id in ids, f"node.id ({node.id}) is not among node.peers ({ids})")
            # With fewer nodes the default means one copy on each, so that small clusters need not
            # set it.
            _require(
                node.replicas <= max(REPLICAS, len(ids)),
                f"node.replicas ({node.replicas}) must be at most the number of nodes in "
                f"node.peers ({len(ids)})",
            )
        return self

    def _validate_access(self) -> None:
        tls, access = self.tls, self.access
        _require(
            bool(tls.cert) == bool(tls.key) == bool(tls.ca) and (bool(tls.cert) or tls == Tls()),
            "TLS needs all of tls.cert, tls.key and tls.ca",
        )
        _require(
            bool(tls.cert) or not access.is_on,
            "access.is_on needs TLS: set tls.cert, tls.key and tls.ca",
        )
        _require(
            access.is_on or access in (Access(), Access(is_given_up=True)),
            "access.admins and access.is_open do nothing without access.is_on: everybody may do "
            "everything",
        )
        _require(
            not (access.is_on and access.is_given_up),
            "access.is_on and access.is_given_up contradict each other",
        )
        _require(
            bool(access.admins) or not access.is_on,
            "access.is_on needs access.admins: without one no user may make users and rules",
        )
        for name in access.admins:
            problem = why_no_name(name, "user")
            _require(not problem, f"access.admins: {problem}")


def listens_elsewhere(own: NodeSettings) -> str:
    """How a founder's address differs from its row in `peers`; empty: it does not.

    That is no error: the row may be an address that is forwarded to the node's own.
    """
    row = next((peer for peer in own.peers if peer.id == own.id), None)
    if row is None or (row.port == own.port and own.host in (row.host, *WILDCARDS)):
        return ""
    return (
        f"the node listens at {own.host}:{own.port}, and `peers` has node {own.id} at "
        f"{row.host}:{row.port}: if that address does not lead here, correct node.host and "
        "node.port, or the row"
    )


def with_number(settings: Settings) -> Settings:
    """These settings with the node's number in place of `{node}` in the paths of `[tls]`."""
    tls, number = settings.tls, str(settings.node.id)
    cert, key = (path.replace("{node}", number) for path in (tls.cert, tls.key))
    return msgspec.structs.replace(settings, tls=msgspec.structs.replace(tls, cert=cert, key=key))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def load(text: bytes) -> Settings:
    """Read a TOML file's text.

    Raises:
        ValueError: the text is not TOML, a value is out of range (the message says where), or two
            settings contradict each other.
    """
    return with_number(msgspec.toml.decode(text, type=Settings).validate())
