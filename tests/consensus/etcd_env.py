"""A small world of nodes, driven by the commands of etcd-io/raft's interaction files.

Nothing happens by itself: messages wait until they are delivered, storage work until its thread is
told to do one piece. Each command returns what it printed.

Source: the commands and their output format are those of etcd-io/raft's rafttest package.
"""

from collections.abc import Callable

from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    UNLIMITED,
    Compacted,
    Config,
    ConfState,
    HardState,
    MembershipChange,
    Message,
    MessageKind,
    ProposalDropped,
    Raft,
    ReadMode,
    Snapshot,
    SnapshotMeta,
    StepRefusal,
    Transition,
    encode_change,
)
from raftmq.log.record import Kind
from tests.consensus import etcd_describe as describe
from tests.consensus.datadriven import Argument, Directive, parse_command
from tests.consensus.etcd_node import (
    CommandFailed,
    HistoryStorage,
    Node,
    Output,
    append,
    apply,
    parse_changes,
    protobuf_bytes,
)

_REFUSALS = {
    StepRefusal.LOCAL_MESSAGE: describe.LOCAL_MESSAGE,
    StepRefusal.UNKNOWN_PEER: describe.PEER_NOT_FOUND,
    StepRefusal.PROPOSAL_DROPPED: describe.DROPPED,
}
_TRANSITIONS = {
    "auto": Transition.AUTO,
    "implicit": Transition.JOINT_IMPLICIT,
    "explicit": Transition.JOINT_EXPLICIT,
}
_SWITCHES = {
    "async-storage-writes": "async_storage_writes",
    "prevote": "pre_vote",
    "checkquorum": "check_quorum",
    "disable-conf-change-validation": "disable_membership_validation",
    "disable-proposal-forwarding": "disable_proposal_forwarding",
    "step-down-on-removal": "step_down_on_removal",
}
_LIMITS = {
    "inflight": "inflight_messages_max",
    "inflight-bytes": "inflight_bytes_max",
    "max-size-per-msg": "message_bytes_max",
    "max-committed-size-per-ready": "committed_bytes_max",
    "max-uncommitted-size": "uncommitted_bytes_max",
}


class Environment:
    """The nodes, the messages on their way, and the commands."""

    def __init__(self) -> None:
        self.output = Output()
        self.nodes: list[Node] = []
        self.messages: list[Message] = []
        self.commands: dict[str, Callable[[tuple[Argument, ...]], None]] = {
            "_breakpoint": lambda arguments: None,
            "add-nodes": self.add_nodes,
            "campaign": self.campaign,
            "compact": self.compact,
            "deliver-msgs": self.deliver_command,
            "forget-leader": self.forget_leader,
            "log-level": self.log_level,
            "process-append-thread": self.process_append_command,
            "process-apply-thread": self.process_apply_command,
            "process-ready": self.process_ready_command,
            "propose": self.propose,
            "raft-log": self.raft_log_command,
            "raft-state": self.raft_state,
            "read-index": self.read_index,
            "report-snapshot": self.report_snapshot,
            "report-unreachable": self.report_unreachable,
            "send-snapshot": self.send_snapshot,
            "set-randomized-election-timeout": self.set_timeout,
            "stabilize": self.stabilize_command,
            "status": self.status,
            "tick": self.tick_command,
            "tick-election": self.tick_election,
            "tick-heartbeat": self.tick_heartbeat,
            "transfer-leadership": self.transfer_leadership,
        }

    def handle(self, directive: Directive) -> str:
        """Run one directive and return what it printed, or `ok`."""
        self.output.parts = []
        try:
            if directive.command == "propose-conf-change":
                self.propose_change(directive.arguments, directive.input)
            else:
                self._single(directive.command, directive.arguments)
                for line in filter(None, directive.input.split("\n")):
                    self._single(*parse_command(line))
        except CommandFailed as failure:
            if self.output.is_quiet:
                return str(failure)
            self.output.write(str(failure))
        return "".join(self.output.parts) or "ok"

    def _single(self, command: str, arguments: tuple[Argument, ...]) -> None:
        handler = self.commands.get(command)
        if handler is None:
            raise CommandFailed("unknown command")
        handler(arguments)

    # Setting up

    def add_nodes(self, arguments: tuple[Argument, ...]) -> None:
        """`add-nodes 3 voters=(1,2,3) learners=(4) index=10 content=x async-storage-writes=true`"""
        options: dict[str, object] = {}
        voters: tuple[int, ...] = ()
        learners: tuple[int, ...] = ()
        index, content = 0, b""
        for key, values in arguments[1:]:
            value = values[0] if values else ""
            if key == "voters":
                voters = tuple(sorted(map(int, values)))
            elif key == "learners":
                learners = tuple(sorted(map(int, values)))
            elif key == "index":
                index = int(value)
                options["applied"] = index
            elif key == "content":
                content = value.encode()
            elif key in _SWITCHES:
                options[_SWITCHES[key]] = value == "true"
            elif key in _LIMITS:
                options[_LIMITS[key]] = int(value)
            elif key == "read-only":
                modes = {"safe": ReadMode.SAFE, "lease-based": ReadMode.LEASE}
                if value not in modes:
                    raise CommandFailed(f'invalid read-only option "{value}"')
                options["read_mode"] = modes[value]
        meta = SnapshotMeta(index, 1 if index else 0, ConfState(voters, learners))
        snapshot = Snapshot(meta, content)
        for _ in range(int(arguments[0].key)):
            self._add_node(options, snapshot)

    def _add_node(self, options: dict[str, object], snapshot: Snapshot) -> None:
        storage = HistoryStorage()
        if snapshot != Snapshot():
            if snapshot.meta.index <= 1:
                raise CommandFailed("index must be specified as > 1 due to bootstrap")
            storage.install(snapshot)
        storage.history = [snapshot]
        settings: dict[str, object] = {
            "id": len(self.nodes) + 1,
            "election_ticks": 3,
            "heartbeat_ticks": 1,
            "pre_vote": False,
            "check_quorum": False,
            "step_down_on_removal": False,
            "disable_proposal_forwarding": False,
            "refuse_foreign_snapshots": True,
            "votes_wait": False,
            "inflight_messages_max": 2**31 - 1,
            "inflight_bytes_max": UNLIMITED,
            "message_bytes_max": UNLIMITED,
            "uncommitted_bytes_max": UNLIMITED,
            "committed_bytes_max": UNLIMITED,
            "measure": protobuf_bytes,
            "trace": self.output.trace,
        }
        config = Config(**(settings | options))  # type: ignore[arg-type]
        self.nodes.append(Node(Raft(config, storage), config, storage))

    def log_level(self, arguments: tuple[Argument, ...]) -> None:
        """`log-level debug`"""
        self._set_level(arguments[0].key)

    def _set_level(self, name: str) -> None:
        if name.upper() not in describe.LEVELS:
            raise CommandFailed(f"log levels must be either of [{' '.join(describe.LEVELS)}]")
        self.output.level = describe.LEVELS.index(name.upper())

    def set_timeout(self, arguments: tuple[Argument, ...]) -> None:
        """`set-randomized-election-timeout 1 timeout=5`"""
        timeout = dict(arguments)["timeout"]
        self._node(arguments).raft._core.election_timeout = int(timeout[0])

    # Input to a node

    def _node(self, arguments: tuple[Argument, ...]) -> Node:
        return self.nodes[int(arguments[0].key) - 1]

    def campaign(self, arguments: tuple[Argument, ...]) -> None:
        """`campaign 1`"""
        self._node(arguments).raft.campaign()

    def propose(self, arguments: tuple[Argument, ...]) -> None:
        """`propose 1 data`"""
        payload = arguments[1].key.encode()
        try:
            self._node(arguments).raft.propose([(Kind.BATCH, payload, 1)], now=0)
        except ProposalDropped:
            raise CommandFailed(describe.DROPPED) from None

    def propose_change(self, arguments: tuple[Argument, ...], given: str) -> None:
        """`propose-conf-change 1 v1=false transition=explicit`, then a line like `v3 r1`"""
        is_v1, transition = False, Transition.AUTO
        for key, values in arguments[1:]:
            if key == "v1":
                is_v1 = values[0] == "true"
            elif key != "transition":
                raise CommandFailed(f"unknown command {key}")
            elif values[0] not in _TRANSITIONS:
                raise CommandFailed(f"unknown transition {values[0]}")
            else:
                transition = _TRANSITIONS[values[0]]
        changes = tuple(parse_changes(given))
        if is_v1 and (len(changes) > 1 or transition is not Transition.AUTO):
            raise CommandFailed("v1 conf change can only have one operation and no transition")
        change = MembershipChange(changes, transition, describe.V1 if is_v1 else b"")
        raft = self._node(arguments).raft
        # As a forwarded proposal: etcd turns a refused change into an empty entry, where our own
        # `propose_membership` raises.
        proposals = ((Kind.MEMBERSHIP, encode_change(change), 1),)
        message = Message(MessageKind.PROPOSE, raft.id, sender=raft.id, proposals=proposals)
        refused = raft.step(message)
        if refused is not None:
            raise CommandFailed(_REFUSALS[refused])

    def tick_election(self, arguments: tuple[Argument, ...]) -> None:
        """`tick-election 1`"""
        node = self._node(arguments)
        for _ in range(node.config.election_ticks):
            node.raft.tick()

    def tick_heartbeat(self, arguments: tuple[Argument, ...]) -> None:
        """`tick-heartbeat 1`"""
        node = self._node(arguments)
        for _ in range(node.config.heartbeat_ticks):
            node.raft.tick()

    def tick_command(self, arguments: tuple[Argument, ...]) -> None:
        """`tick 1 5`"""
        for _ in range(int(arguments[1].key)):
            self._node(arguments).raft.tick()

    def transfer_leadership(self, arguments: tuple[Argument, ...]) -> None:
        """`transfer-leadership from=1 to=4`"""
        named = dict(arguments)
        self.nodes[int(named["from"][0]) - 1].raft.transfer_leadership(int(named["to"][0]))

    def forget_leader(self, arguments: tuple[Argument, ...]) -> None:
        """`forget-leader 1`"""
        self._node(arguments).raft.forget_leader()

    def read_index(self, arguments: tuple[Argument, ...]) -> None:
        """`read-index 1 context`"""
        self._node(arguments).raft.read_index(arguments[1].key.encode())

    def report_unreachable(self, arguments: tuple[Argument, ...]) -> None:
        """`report-unreachable 1 2`"""
        self._node(arguments).raft.report_unreachable(int(arguments[1].key))

    def report_snapshot(self, arguments: tuple[Argument, ...]) -> None:
        """`report-snapshot 1 2 ok=false`"""
        ok = dict(arguments).get("ok", ("true",))[0] == "true"
        self._node(arguments).raft.report_snapshot(int(arguments[1].key), ok=ok)

    # Looking at a node

    def raft_log_command(self, arguments: tuple[Argument, ...]) -> None:
        """`raft-log 1`"""
        self._raft_log(self._node(arguments))

    def _raft_log(self, node: Node) -> None:
        storage = node.storage
        first, last = storage.first_index(), storage.last_index()
        if last < first:
            self.output.write(f"log is empty: first index={first}, last index={last}")
        else:
            self.output.write(describe.entries(storage.records))

    def raft_state(self, arguments: tuple[Argument, ...]) -> None:
        """`raft-state`"""
        for node in self.nodes:
            status = node.raft.status()
            voter = "(Voter)" if status.id in status.membership.voters else "(Non-Voter)"
            self.output.write(
                f"{status.id}: {describe.ROLE_NAMES[status.role]} {voter} "
                f"Term:{status.hard_state.term} Lead:{status.leader}\n"
            )

    def status(self, arguments: tuple[Argument, ...]) -> None:
        """`status 1`"""
        raft = self._node(arguments).raft
        if raft.is_leader:
            self.output.write(describe.progress_map(raft._core.members))

    def compact(self, arguments: tuple[Argument, ...]) -> None:
        """`compact 1 11`"""
        node = self._node(arguments)
        try:
            node.storage.compact(int(arguments[1].key))
        except Compacted:
            raise CommandFailed("requested index is unavailable due to compaction") from None
        self._raft_log(node)

    def send_snapshot(self, arguments: tuple[Argument, ...]) -> None:
        """`send-snapshot 1 3`"""
        sender = self._node(arguments)
        message = Message(
            MessageKind.SNAPSHOT,
            int(arguments[1].key),
            sender=sender.raft.id,
            term=sender.raft.term,
            snapshot=sender.storage.snapshot(),
        )
        self.messages.append(message)
        self.output.write(describe.message(message))

    # Moving messages and work

    def deliver_command(self, arguments: tuple[Argument, ...]) -> None:
        """`deliver-msgs 1 2 type=MsgApp drop=(3)`"""
        kind: MessageKind | None = None
        recipients: list[tuple[int, bool]] = []
        for key, values in arguments:
            if not values:
                recipients.append((int(key), False))
            elif key == "drop":
                recipients.extend((int(value), True) for value in values)
            elif key == "type":
                kind = describe.KINDS_BY_NAME[values[0]]
        handled = [self.deliver(to, kind, drop=drop) for to, drop in recipients]
        if not any(handled):
            self.output.write("no messages\n")

    def _waiting(self, to: int, kind: MessageKind | None, *, drop: bool) -> list[Message]:
        def is_wanted(message: Message) -> bool:
            # A node's messages to itself and its threads do not cross the network: never lost.
            is_local = message.sender == message.to or message.sender >= APPLY_THREAD
            return (
                message.to == to
                and not (drop and is_local)
                and (kind is None or message.kind is kind)
            )

        return [message for message in self.messages if is_wanted(message)]

    def deliver(self, to: int, kind: MessageKind | None, *, drop: bool) -> int:
        """Deliver or drop what waits for one node; returns how many messages that was."""
        taken = self._waiting(to, kind, drop=drop)
        gone = {id(message) for message in taken}
        self.messages = [message for message in self.messages if id(message) not in gone]
        for message in taken:
            prefix = "dropped: " if drop else ""
            self.output.write(f"{prefix}{describe.message(message)}\n")
            if not drop:
                refused = self.nodes[to - 1].raft.step(message)
                if refused is not None:
                    self.output.write(_REFUSALS[refused] + "\n")
        return len(taken)

    def _each(
        self, arguments: tuple[Argument, ...], title: str, work: Callable[[Node], None]
    ) -> None:
        chosen = [int(key) for key, values in arguments if not values]
        for number in chosen:
            if len(chosen) == 1:
                work(self.nodes[number - 1])
                continue
            self.output.write(f"> {number} {title}\n")
            with self.output.indented():
                work(self.nodes[number - 1])

    def process_ready_command(self, arguments: tuple[Argument, ...]) -> None:
        """`process-ready 1 2`"""
        self._each(arguments, "handling Ready", self.process_ready)

    def process_append_command(self, arguments: tuple[Argument, ...]) -> None:
        """`process-append-thread 1 2`"""
        self._each(arguments, "processing append thread", self.process_append)

    def process_apply_command(self, arguments: tuple[Argument, ...]) -> None:
        """`process-apply-thread 1 2`"""
        self._each(arguments, "processing apply thread", self.process_apply)

    def process_ready(self, node: Node) -> None:
        """Do what a Ready asks for, or queue it for the threads."""
        work = node.raft.ready()
        self.output.write(describe.ready(work))
        is_async = node.config.async_storage_writes
        if not is_async:
            append(node, work.hard_state, work.entries, work.snapshot)
            apply(node, work.committed)
        queues = {APPEND_THREAD: node.append_work, APPLY_THREAD: node.apply_work}
        for message in work.messages:
            queues.get(message.to, self.messages).append(message)
        if not is_async:
            node.raft.advance()

    def process_append(self, node: Node) -> None:
        """One piece of work of the append thread."""
        if not node.append_work:
            self.output.write("no append work to perform")
            return
        message = node.append_work.pop(0)
        self._describe_work(message)
        state = HardState(message.term, message.vote, message.commit)
        append(node, None if state == HardState() else state, message.entries, message.snapshot)
        self._respond(message)

    def process_apply(self, node: Node) -> None:
        """One piece of work of the apply thread."""
        if not node.apply_work:
            self.output.write("no apply work to perform")
            return
        message = node.apply_work.pop(0)
        self._describe_work(message)
        apply(node, message.entries)
        self._respond(message)

    def _describe_work(self, message: Message) -> None:
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        bare = Message(**(fields | {"responses": ()}))
        self.output.write(f"Processing:\n{describe.message(bare)}\n")

    def _respond(self, message: Message) -> None:
        self.output.write("Responses:\n")
        for response in message.responses:
            self.output.write(describe.message(response) + "\n")
        self.messages.extend(message.responses)

    def stabilize_command(self, arguments: tuple[Argument, ...]) -> None:
        """`stabilize 1 2 log-level=none`"""
        before = self.output.level
        try:
            for key, values in arguments:
                if key == "log-level" and values:
                    self._set_level(values[0])
            chosen = [int(key) for key, values in arguments if not values]
            self.stabilize([self.nodes[one - 1] for one in chosen] or list(self.nodes))
        finally:
            self.output.level = before

    def stabilize(self, nodes: list[Node]) -> None:
        """Work on `nodes` in rounds until there is nothing left to do."""
        while True:
            rounds = (
                [self._section(n, n.raft.has_ready(), "handling Ready", self.process_ready)
                 for n in nodes],
                [self._section(n, bool(self._waiting(n.raft.id, None, drop=False)),
                               "receiving messages", self._receive) for n in nodes],
                [self._section(n, bool(n.append_work), "processing append thread",
                               self._all_append) for n in nodes],
                [self._section(n, bool(n.apply_work), "processing apply thread",
                               self._all_apply) for n in nodes],
            )  # fmt: skip
            if not any(any(done) for done in rounds):
                return

    def _section(self, node: Node, is_due: bool, title: str, work: Callable[[Node], None]) -> bool:
        if is_due:
            self.output.write(f"> {node.raft.id} {title}\n")
            with self.output.indented():
                work(node)
        return is_due

    def _receive(self, node: Node) -> None:
        self.deliver(node.raft.id, None, drop=False)

    def _all_append(self, node: Node) -> None:
        while node.append_work:
            self.process_append(node)

    def _all_apply(self, node: Node) -> None:
        while node.apply_work:
            self.process_apply(node)
