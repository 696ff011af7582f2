"""One node: a process's share of a cluster, and the loop that drives its partition groups.

| task | does |
|---|---|
| pump | settles what other steps have marked: runs groups, wakes fetches, starts a disk pass |
| ticker | lets a tick pass in each group |
| links | keep a connection to each other node |
| accept | serves the clients and peers that connect |
| timers | long polls and retries |
| leader tasks | what leaders do now and then: found the cluster, spread leadership, retention |

All of them run on one trio loop; the only other threads are the disk worker and the reading worker.

Invariants:
- A data folder is locked by one process, and belongs to one node of one cluster.
- A blank folder takes part in nothing before it is certain that this node was never known under
  another incarnation, or is another member than that one was: a wiped disk must not vote again
  (`admission`).
- A fault that could make replicas differ (a failed fsync, a record of a newer version) ends
  the node with `NodeStopped`, which says why and what to do; rot is mended (`repair`).
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, assert_never

import trio

from raftmq.broker.access.gate import Gate
from raftmq.broker.access.notes import Notes
from raftmq.broker.access.requests import AccessRequests
from raftmq.broker.cluster.admission import Admission, heed_objections, wait_admitted
from raftmq.broker.cluster.certificates import check_cluster, check_node
from raftmq.broker.cluster.identity import lock_folder, take_up
from raftmq.broker.cluster.links import Links
from raftmq.broker.cluster.peer_identities import PeerIdentities
from raftmq.broker.deliver.delay_scheduler import DelayScheduler
from raftmq.broker.deliver.feeds import Feeds
from raftmq.broker.deliver.group_deletion import Forgetting
from raftmq.broker.deliver.popping import Popping
from raftmq.broker.dynamic.following import DynamicSettings
from raftmq.broker.dynamic.requests import SettingsRequests
from raftmq.broker.host import SOFTWARE, Source
from raftmq.broker.loop_budget import Turns
from raftmq.broker.presence.service import Presence
from raftmq.broker.quotas.quotas import Quotas
from raftmq.broker.replica.after_apply import AfterApply
from raftmq.broker.replica.disk import WINDOWS_MAX, DiskLoop
from raftmq.broker.replica.effects import (
    Applied,
    Effect,
    EndAbstention,
    Led,
    NoteLoss,
    Persist,
    ReadBack,
    RestoreSnapshot,
    Send,
    TakeSnapshot,
)
from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.replica.opener import GroupOpener
from raftmq.broker.replica.removal import ReplicaRemoval
from raftmq.broker.replica.repair import Repairs
from raftmq.broker.replica.replicas import Replicas
from raftmq.broker.replica.retention import Retention
from raftmq.broker.replica.snapshots import Snapshots
from raftmq.broker.replica.space import Space
from raftmq.broker.serve.answers import OpenRequest, elsewhere, taking_over, unknown_queue
from raftmq.broker.serve.connection import UNACKNOWLEDGED_SECONDS_MAX, Connection, Refusal
from raftmq.broker.serve.dispatcher import Dispatcher
from raftmq.broker.serve.events import EventRequests
from raftmq.broker.serve.fetches import Fetches
from raftmq.broker.serve.group_coordinator import GroupCoordinator
from raftmq.broker.serve.key_search import KeySearch
from raftmq.broker.serve.load import Load
from raftmq.broker.serve.pop_group_requests import PopGroupRequests
from raftmq.broker.serve.requests import Requests
from raftmq.broker.serve.traces import TraceRequests
from raftmq.broker.serve.transactions import TransactionRequests
from raftmq.consensus import Message, MessageKind
from raftmq.errors import Reason
from raftmq.log.faults import Dropped, LogFault, RotFound
from raftmq.log.index_file import IndexDamaged
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog
from raftmq.machine.machine import PartitionMachine
from raftmq.results import UnsupportedVersion
from raftmq.tls.names import CertificateName
from raftmq.wire import raft as raft_wire
from raftmq.wire.frame import Frame
from raftmq.wire.messages import PROTOCOL, ErrorReply, FrameKind, Hello, Welcome

from .leader_tasks import LeaderTasks
from .service import Service
from .settings import Settings
from .shutdown import hand_over
from .status import node_status
from .timers import Timers
from .world import World, give_up_after

_BEFORE_SERVING = frozenset((FrameKind.PROBE, FrameKind.SNAPSHOT, FrameKind.DIRECTORY))
"""Frames of other nodes that a node acts on while it is starting."""


class NodeStopped(Exception):
    """The node cannot go on. The message says what happened and what to do."""


class Node:
    """One broker process. `run` it in a nursery; `stop` it for a graceful end."""

    load_class = Load

    def __init__(self, settings: Settings, world: World) -> None:
        assert world.is_under_tls is bool(settings.tls.cert), "settings and world differ on TLS"
        self.settings = settings
        """All settings of the node."""
        self.world = world
        """Network, disk, clock and randomness."""
        self.id = settings.node.id
        """The node's number."""
        self.groups: dict[int, Group] = {}
        """The replicas that the node carries, by partition group."""
        self.timers = Timers()
        """Calls at a later time."""
        self.gate: Gate = Gate(self)
        """Users and permissions of the connections."""
        self.started_ms = world.now_ms()
        """Wall-clock time of the start, in milliseconds since 1970."""
        self.space = Space(self)
        """The free space of the disk."""
        self.incarnation = ""
        """The data folder's random name; empty before `run`."""
        self.generation = 0
        """Number of data folders of this node that were lost before this one."""
        self.waits_for = ""
        """Why the node does not serve yet, for people; empty: it serves, or will at once."""
        self.lost_logs: set[int] = set()
        """Partition groups whose logs are lost here, while another member id is asked for."""
        self._blank_catalog = Catalog()
        self._marked: dict[Group, None] = {}
        self.turns = Turns(self.start_soon)
        self._wake = trio.Event()
        self._version_looked_at = 0
        self._stop = trio.Event()
        self.is_serving = False
        """True while clients are served."""
        self._fault: BaseException | None = None

    # The face to its parts (`host.Host`)

    @property
    def catalog(self) -> Catalog:
        """The system group's machine."""
        group = self.groups.get(SYSTEM_GROUP)
        if group is None:
            return self._blank_catalog
        assert isinstance(group.machine, Catalog)
        return group.machine

    def group(self, number: int) -> Group | None:
        """This node's replica of a partition group."""
        return self.groups.get(number)

    def source(self, queue: int) -> Source | ErrorReply:
        """The source to read a queue from on this node, or the refusal."""
        number = self.catalog.group_of(queue)
        if number is None:
            return unknown_queue(queue)
        group = self.groups.get(number)
        if group is None:
            return elsewhere(number)
        if not group.is_leader:
            return group.not_leader()
        if not group.is_current:
            return taking_over(number)
        assert isinstance(group.machine, PartitionMachine)
        return Source(group, group.machine.ends.get(queue, 0))

    def forget_group(self, group: Group) -> None:
        """Drop a group that this node no longer carries."""
        del self.groups[group.number]
        self._marked.pop(group, None)
        group.retire()
        for service in self._services:
            service.forget(group)
        self.disk.forget(group)

    def catalog_changed(self) -> None:
        """Follow the catalog: it may have changed."""
        self.gate.follow()
        self.quotas.follow()
        self.dynamic.follow()
        self._nursery.start_soon(self._catalog_changed)

    def think(self) -> None:
        """Have the leader tasks run soon, as the state that they act on has changed."""
        self.leader_tasks.think()

    def read_failed(self, error: BaseException) -> ErrorReply:
        """The refusal for a request whose records cannot be read here. Rot is mended."""
        if isinstance(error, RotFound):
            return self.repairs.found(error)
        if not isinstance(error, Dropped | OSError):
            self.fail(error)
        return ErrorReply("unavailable", f"the log cannot be read here: {error}", retry_ms=200)

    def index_failed(self, group: Group, error: BaseException) -> ErrorReply:
        """The refusal for a request whose index, or records, cannot be read here."""
        if isinstance(error, IndexDamaged):
            return self.repairs.found_index(group, error)
        return self.read_failed(error)

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds."""
        return self.world.now_ms()

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a task of the node's own beside the others."""
        self._nursery.start_soon(task, *args)

    def status(self, *, after: int = -1) -> dict[str, Any]:
        """A picture of this node for people and programs; see `Status`."""
        return node_status(self, after=after)

    # Groups

    def mark(self, group: Group) -> None:
        """Run the group's pump soon: at the end of the step that runs, or in one of its own."""
        if group.is_retired:
            return
        self._marked[group] = None
        if not self.load.step.is_open:
            self._wake.set()

    def persisted(self, group: Group, messages: list[Message]) -> None:
        """Storage messages of a group are durable; none: its store began a segment."""
        self._perform_all(group, group.persisted(messages))

    def _perform_all(self, group: Group, effects: Iterator[Effect]) -> None:
        for effect in effects:
            self.perform(group, effect)

    def perform(self, group: Group, effect: Effect) -> None:
        """Do what a group asks for."""
        match effect:
            case Send(message):
                if message.kind is MessageKind.SNAPSHOT:
                    self._nursery.start_soon(self.snapshots.send, group, message)
                else:
                    self.links.send(group, message)
            case Persist(message):
                self.disk.write(group, message)
            case ReadBack(peer, low, high):
                self.repairs.fetch(group, peer, low, high)
            case Applied(records, results):
                if group.number == SYSTEM_GROUP:
                    self.catalog_changed()
                for service in self._services:
                    service.applied(group, records, results)
            case TakeSnapshot(record):
                self.snapshots.take(group, record)
            case RestoreSnapshot(snapshot):
                self.snapshots.restore(group, snapshot)
            case Led(is_leader):
                for service in self._services:
                    service.led(group, is_leader)
            case NoteLoss():
                self.repairs.note_loss(group)
            case EndAbstention():
                self.repairs.end_abstention(group)
            case _:
                assert_never(effect)

    # The face to connections (`connection.Handler`)

    def check_certificate(self, names: frozenset[CertificateName]) -> None:
        """Refuse a certificate that names holders in other clusters only."""
        check_cluster(names, self.settings.node.cluster)

    def greet(self, connection: Connection, hello: Hello) -> Welcome:
        """Accept or refuse a client or peer that connected."""
        cluster = self.settings.node.cluster
        if hello.node and connection.names is not None:
            check_node(connection.names, cluster, hello.node)
        if hello.cluster not in ("", cluster):
            message = f"this is cluster {cluster!r}, not {hello.cluster!r}"
            raise Refusal(ErrorReply(Reason.WRONG_CLUSTER.value, message))
        if not hello.node and (why := self.load.why_no_client(connection)):
            raise Refusal(ErrorReply("busy", why, retry_ms=1000))
        self.gate.greet(connection, hello)
        self.links.meet(hello)
        who = (PROTOCOL, cluster, self.id, self.incarnation, SOFTWARE)
        own, limits = self.settings.node, self.settings.limits
        return Welcome(
            *who,
            limits.frame_bytes_max,
            limits.batch_bytes_max,
            wants_login=connection.needs_login,
            level=self.links.level,
            zone=own.zone,
            machine=own.machine,
        )

    def trust_changed(self) -> None:
        """The authorities, or the revoked certificates, have changed: end all connections under
        TLS. The other ends connect again, as far as they are still trusted."""
        for connection in list(self.load.secured):
            connection.end()
        for link in self.links.all():
            link.reopen()

    def handle(self, connection: Connection, frame: Frame) -> None:
        """Act on a frame."""
        if frame.kind == FrameKind.RAFT:
            self._take_raft(connection, frame)
            return
        asked = OpenRequest(connection, frame, self.turns)
        if self.is_serving or frame.kind in _BEFORE_SERVING:
            asked.answer(self._dispatcher.answer(frame, asked))
        else:
            text = f"this node is starting{self.waits_for and ': '}{self.waits_for}"
            asked.answer(ErrorReply("unavailable", text, retry_ms=200))

    def closed(self, connection: Connection) -> None:
        """The connection is gone: drop what waits for it."""
        self.gate.closed(connection)
        self.quotas.closed(connection)
        if connection.hello is not None:
            self.links.part(connection.hello)
        if self.is_serving:
            for service in self._services:
                service.closed(connection)

    def _take_raft(self, connection: Connection, frame: Frame) -> None:
        hello = connection.hello
        # Before the records are decoded: a client's frame may hold a million of them.
        if hello is None or not hello.node:
            return
        number, message = raft_wire.decode(frame)
        group = self.groups.get(number)
        if group is None or not self.is_serving or node_of(message.sender) != hello.node:
            return
        # The sender's folder is known durably before its message is acted on: see there.
        self.peer_identities.admit(hello, message.sender)
        # A message that is meant for an older member of this node must not be acted on.
        if message.to != group.raft.id:
            return
        # If the file is not here, the leader finds that the member lacks records, and sends again.
        if message.snapshot is not None and not self.snapshots.has(group, message.snapshot):
            return
        if message.kind is MessageKind.TIMEOUT_NOW and (group.differs or not self.may_lead):
            group.decline(message)
        elif not (self.space.refuses(message) or self.disk.refuses(group, message)):
            group.step(message)

    @property
    def may_lead(self) -> bool:
        """False if this node must not be made a leader: it is stopping, or its disk is full."""
        return not self._stop.is_set() and not self.space.is_low

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop` or a fault; `task_status.started` is called once clients are served.

        Cancelling is a crash: what was acked is safe, the leadership is not handed over.

        Raises:
            NodeStopped: a fault of the disk, a folder that is not ours, an address in use.
        """
        try:
            await self._run(task_status)
        except* (LogFault, OSError, UnsupportedVersion) as group:
            fault: BaseException = group
            while isinstance(fault, BaseExceptionGroup):
                fault = fault.exceptions[0]
            raise NodeStopped(f"{type(fault).__name__}: {fault}") from group
        if self._fault is not None:
            fault = self._fault
            raise NodeStopped(f"{type(fault).__name__}: {fault}") from fault

    def stop(self) -> None:
        """Hand over what this node leads, answer what is under way, and end `run`."""
        self._stop.set()

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        files, own = self.world.files, self.settings.node
        lock = lock_folder(files, own.data)
        identity = take_up(files, own, self.world.random)
        self.incarnation, self.generation = identity.incarnation, identity.generation
        self.peer_identities = PeerIdentities(files, own.data, lambda: self.catalog)
        """The other nodes' data folders, as far as known."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._assemble(nursery)
                listener = await self.world.listen(own.host, own.port)
                nursery.start_soon(self._accept, listener)
                self.links.connect()
                if not identity.is_admitted:
                    await wait_admitted(self, identity)
                self.links.is_admitted = True
                self.replicas = Replicas(self, self._opener, self.removal)
                """The replicas that the node carries, and their member ids."""
                await self.replicas.open_all()
                self._serve(nursery)
                task_status.started()
                await self._stop.wait()
                await hand_over(self, self.disk)
                nursery.cancel_scope.cancel()
        finally:
            self._close()
            lock.close()

    def _assemble(self, nursery: trio.Nursery) -> None:
        self._disk_worker = self.world.worker(f"raftmq-disk-{self.id}", nursery)
        self.dynamic = DynamicSettings(self, self._disk_worker)
        """The catalog's settings for this node."""
        limits = self.settings.limits
        self.load = self.load_class.within(limits, descriptors_max=self.world.descriptors_max)
        """Places and bytes that all connections hold."""
        self._reader = self.world.worker(f"raftmq-read-{self.id}", nursery)
        self.disk: DiskLoop = DiskLoop(
            self._disk_worker,
            self.timers,
            begin=self.load.step.begin,
            persisted=self.persisted,
            settle=self.settle,
            on_fault=self.fail,
            space=self.space,
            unwritten_bytes_max=limits.unwritten_bytes_max,
            messages_max=WINDOWS_MAX * self.settings.raft.inflight_messages_max,
        )
        """Writes all groups' records."""
        self._after_apply = AfterApply(self, self.space, self._disk_worker, self.disk)
        self.links: Links = Links(self, nursery)
        """Connections to the other nodes."""
        self._fetches = Fetches(self, timers=self.timers, reader=self._reader, limits=limits)
        self.quotas = Quotas(self, self._fetches.sessions.topics_of)
        """Quotas of users and topics."""
        self._popping = Popping(self, timers=self.timers, reader=self._reader, limits=limits)
        self.retention = Retention(lambda: self.settings.log, self.dynamic.topics)
        """The indexes up to which logs are dropped."""
        self.delay_scheduler = DelayScheduler(
            self, timers=self.timers, reader=self._reader, batch_bytes_max=limits.batch_bytes_max
        )
        """Delayed messages that fall due."""
        self._feeds = Feeds(
            self, matching=self._fetches.matching, timers=self.timers, reader=self._reader
        )
        self._fetches.when_matched = self._feeds.matched
        self.repairs = Repairs(self, reader=self._reader, disk=self._disk_worker)
        """Damage on the disk, and its repair."""
        self.snapshots = Snapshots(
            self,
            repairs=self.repairs,
            space=self.space,
            reader=self._reader,
            disk=self._disk_worker,
        )
        """Snapshots of the groups: taken, sent, compared."""
        self._opener: GroupOpener = GroupOpener(
            self, mark=self.mark, on_snapshot=self.repairs.found_snapshot
        )
        self.removal: ReplicaRemoval = ReplicaRemoval(self, self._disk_worker, self._opener)
        """Replicas that are no longer wanted."""
        self.leader_tasks = LeaderTasks(
            self,
            keep_up=self._keep_up,
            retention=self.retention,
            trimmable=self.delay_scheduler.trimmable,
            is_behind_filters=lambda: self._fetches.matching.is_behind_filters,
        )
        """Recurring tasks for the groups that the node leads."""
        self._arrange()

    def _arrange(self) -> None:
        """List the services, and the requests that each of them answers."""
        self.presence = Presence(self, self._reader)
        """This node's member of the directory."""
        self._services: list[Service] = [
            # First the index, in which the services after it look up the records just applied.
            self._after_apply,
            self.snapshots,
            # The order of these decides no more than whose answers and records come first.
            GroupCoordinator(self, timers=self.timers, limits=self.settings.limits),
            self._popping,
            self.delay_scheduler,
            self._feeds,
            self._fetches,
            SettingsRequests(self, self.presence.heard),
            self.presence,
            # Last the tasks that act on the state which the services before them leave.
            self.leader_tasks,
        ]
        # These answer requests, and take part in nothing else.
        others: list[Service] = [
            Admission(self),
            Requests(self, fetches=self._fetches, reader=self._reader, limits=self.settings.limits),
            PopGroupRequests(self),
            TraceRequests(self, self._reader),
            EventRequests(self, self._reader),
            KeySearch(self, self._reader, bytes_max=self.settings.limits.fetch_bytes_max),
            TransactionRequests(self),
            Forgetting(self),
            AccessRequests(self, self.gate),
        ]
        # Of the services that have something to flush: `settle` runs after each read.
        self._flushes = [s.flush for s in self._services if type(s).flush is not Service.flush]
        tables = (each.routes for each in (*self._services, *others))
        self._dispatcher = Dispatcher(tables, self.gate, self.quotas.hold, Notes(self))

    def _keep_up(self) -> None:
        """Do what a node does now and then, whether it leads a group or not."""
        self._after_apply.mark_idle()
        self._after_apply.check_space()
        self.repairs.scrub()
        self.links.prune()
        heed_objections(self)
        self.removal.think()
        self.replicas.think()

    def _serve(self, nursery: trio.Nursery) -> None:
        self.quotas.follow()
        self.dynamic.follow()
        self.is_serving = True
        leading, matching = self.leader_tasks.run, self._fetches.match
        for task in (self._pump, self._tick, self.timers.run, leading, matching):
            nursery.start_soon(task)

    async def _accept(self, listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        await trio.serve_listeners(self._serve_one, [listener])

    async def _serve_one(self, stream: trio.abc.Stream) -> None:
        give_up_after(stream, UNACKNOWLEDGED_SECONDS_MAX)
        await Connection(stream, self, self.settings.limits, self.load).serve()

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self.settle()

    def settle(self) -> None:
        """Let the marked groups act on all that has come in. Called at the end of each step: an
        answer waits for no other turn of the loop. The pump task does it for all other marks."""
        self.load.step.begin()
        self.turns.begin()
        for flush in self._flushes:
            flush()
        while self._marked:
            marked, self._marked = self._marked, {}
            for group in marked:
                self._perform_all(group, group.pump())
        self._fetches.wake(self._after_apply.take_touched())
        # Messages leave before the disk pass, so that followers write while this node does.
        self.load.step.end()
        self.disk.flush()
        if self._marked:
            self._wake.set()

    async def _tick(self) -> None:
        seconds = self.settings.raft.tick_ms / 1000
        due = trio.current_time()
        while True:
            due += seconds
            await trio.sleep_until(due)
            for group in self.groups.values():
                group.tick()
            # Ticks missed in a long pause (SIGSTOP, a suspended machine) are not made up for.
            due = max(due, trio.current_time() - seconds)

    async def _catalog_changed(self) -> None:
        """Open groups that this node shall carry, connect to nodes that are new."""
        if self.peer_identities.is_superseded(self.id, self.generation):
            self.fail(self.peer_identities.fault_of(self.id, self.incarnation))
            return
        self.replicas.open_wanted()
        self.links.connect()
        self.leader_tasks.think()
        if self.catalog.version != self._version_looked_at:
            # Fetches may rest under queues of a topic that is gone: they are refused now.
            self._version_looked_at = self.catalog.version
            self._fetches.look_for_lost()

    # The end

    def fail(self, fault: BaseException) -> None:
        """End this node by a fault that it must not live on with."""
        if self._fault is None:
            self._fault = fault
        self._nursery.cancel_scope.cancel()

    def _close(self) -> None:
        self.is_serving = False
        for worker in (self._disk_worker, self._reader):
            worker.close()
        if self._stop.is_set() and self._fault is None:
            for group in self.groups.values():
                group.store.close()
