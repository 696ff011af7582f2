"""Golden scripts: a cluster driven by short commands, and its actions in a small notation.

| command | does |
|---|---|
| `cluster 3 learners=(4) spare=(5) pre-vote check-quorum` | makes nodes; spare ones know nothing |
| `campaign 1`, `tick 1 5`, `propose 1 x y`, `read 1 r`, `transfer 1 2`, `forget 2` | tells a node |
| `change 1 v4 r1 explicit` | proposes a membership change: voter, learner, remove |
| `cut 3`, `heal`, `lose`, `restart 3`, `snapshot 1 2` | harms the network or a node, or compacts |
| `settle` | delivers until nothing moves, and prints each message and each change |
| `show` | prints each node |

A message reads `1>2 append t2 after 3@1 [x y] commit 3`: sender, receiver, kind, term, the record
before (index @ term), the records, the commit index.
"""

from collections.abc import Iterable

from raftmq.consensus import (
    Event,
    MembershipChange,
    Message,
    MessageKind,
    ProposalDropped,
    Transition,
    decode_change,
)
from raftmq.log.record import Kind, Record
from tests.consensus.cluster import Cluster
from tests.consensus.datadriven import Argument, Directive
from tests.consensus.etcd_node import parse_changes

_LETTERS = "vlru"
_TOLD = {
    Event.BECAME_FOLLOWER: "follows in t{}",
    Event.BECAME_PRE_CANDIDATE: "asks for pre-votes in t{}",
    Event.BECAME_CANDIDATE: "campaigns in t{}",
    Event.BECAME_LEADER: "leads in t{}",
    Event.MEMBERSHIP_SWITCHED: "has {}",
    Event.QUORUM_LOST: "hears from no quorum",
    Event.CONFLICT_FOUND: "replaces from {}: t{} by t{}",
    Event.SNAPSHOT_CAUGHT_UP: "has {} back after a snapshot",
}


class Script:
    """Runs the directives of one script."""

    def __init__(self) -> None:
        self.cluster = Cluster(0)
        self.lines: list[str] = []
        self.seen: dict[int, int] = {}

    def handle(self, directive: Directive) -> str:
        """Run one directive's commands; returns what they printed."""
        self.lines = []
        words = [argument.key for argument in directive.arguments if not argument.values]
        lists = [argument for argument in directive.arguments if argument.values]
        method = getattr(self, f"do_{directive.command}", None)
        if method is None:
            return f"unknown command {directive.command}"
        try:
            method(words, lists)
        except ProposalDropped as dropped:
            self.lines.append(f"refused: {dropped}")
        return "\n".join(self.lines) or "ok"

    def _told(self, event: Event, own: int, fields: tuple[object, ...]) -> None:
        if event in _TOLD:
            self.lines.append(f"{own} {_TOLD[event].format(*fields)}")

    # Commands

    def do_cluster(self, words: list[str], lists: list[Argument]) -> None:
        named = {argument.key: [int(one) for one in argument.values] for argument in lists}
        self.cluster = Cluster(
            int(words[0]),
            learners=named.get("learners", ()),
            spare=named.get("spare", ()),
            pre_vote="pre-vote" in words,
            check_quorum="check-quorum" in words,
            election_ticks=5,
            draw=lambda count: 0,
            trace=self._told,
        )
        self.lines = []

    def do_campaign(self, words: list[str], lists: list[Argument]) -> None:
        self.cluster.raft(int(words[0])).campaign()

    def do_tick(self, words: list[str], lists: list[Argument]) -> None:
        self.cluster.tick(int(words[0]), int(words[1]))

    def do_propose(self, words: list[str], lists: list[Argument]) -> None:
        payloads = [word.encode() for word in words[1:]]
        index = self.cluster.propose(int(words[0]), *payloads)
        self.lines.append(f"at {index}")

    def do_change(self, words: list[str], lists: list[Argument]) -> None:
        changes = tuple(parse_changes(" ".join(w for w in words[1:] if w[0] in _LETTERS)))
        transition = Transition.JOINT_EXPLICIT if "explicit" in words else Transition.AUTO
        change = MembershipChange(changes, transition)
        index = self.cluster.raft(int(words[0])).propose_membership(change, now=0)
        self.lines.append(f"at {index}")

    def do_read(self, words: list[str], lists: list[Argument]) -> None:
        self.cluster.raft(int(words[0])).read_index(words[1].encode())

    def do_transfer(self, words: list[str], lists: list[Argument]) -> None:
        self.cluster.raft(int(words[0])).transfer_leadership(int(words[1]))

    def do_forget(self, words: list[str], lists: list[Argument]) -> None:
        self.cluster.raft(int(words[0])).forget_leader()

    def do_cut(self, words: list[str], lists: list[Argument]) -> None:
        self.cluster.cut(*map(int, words))

    def do_heal(self, words: list[str], lists: list[Argument]) -> None:
        self.cluster.heal()

    def do_lose(self, words: list[str], lists: list[Argument]) -> None:
        for message in self.cluster.collect():
            self.lines.append(f"lost {describe(message)}")
        self.cluster.messages.clear()

    def do_restart(self, words: list[str], lists: list[Argument]) -> None:
        self.cluster[int(words[0])].restart()
        self.seen[int(words[0])] = 0

    def do_snapshot(self, words: list[str], lists: list[Argument]) -> None:
        node = self.cluster[int(words[0])]
        node.snapshot(keep=int(words[1]) if words[1:] else 0)
        self.lines.append(f"{node.id} keeps from {node.storage.first_index()} on")

    def do_settle(self, words: list[str], lists: list[Argument]) -> None:
        cluster = self.cluster
        while True:
            waiting, cluster.messages = cluster.messages, []
            for node in cluster.nodes.values():
                waiting += node.work()
                self._tell_applied(node.id)
            if not waiting:
                return
            for message in waiting:
                is_cut = (message.sender, message.to) in cluster.cuts
                self.lines.append(f"{'cut ' if is_cut else ''}{describe(message)}")
                if not is_cut:
                    cluster.raft(message.to).step(message)

    def _tell_applied(self, number: int) -> None:
        node = self.cluster[number]
        new = node.applied[self.seen.get(number, 0) :]
        self.seen[number] = len(node.applied)
        if new:
            self.lines.append(f"{number} applies {_records(new)}")
        for read in node.reads:
            self.lines.append(f"{number} may read {read.context.decode()} at {read.index}")
        node.reads.clear()

    def do_show(self, words: list[str], lists: list[Argument]) -> None:
        for node in self.cluster.nodes.values():
            raft = node.raft
            log = " ".join(f"{index}@{term}" for term, index in node.log)
            self.lines.append(
                f"{node.id} {raft.role.name.lower()} t{raft.term} of {raft.leader} "
                f"commit {raft.commit} log {log or 'empty'}"
            )


def describe(message: Message) -> str:
    """A message in the small notation."""
    name = message.kind.name.lower().replace("_", "-")
    text = f"{message.sender}>{message.to} {name}"
    text += f" t{message.term}" if message.term else ""
    place = f"{message.index}@{message.log_term}"
    match message.kind:
        case MessageKind.APPEND:
            text += f" after {place}"
            text += f" [{_records(message.entries)}]" if message.entries else ""
            text += f" commit {message.commit}"
        case MessageKind.APPEND_RESPONSE if message.reject:
            text += f" refuses {message.index}, try {message.hint}@{message.log_term}"
        case MessageKind.APPEND_RESPONSE:
            text += f" has {message.index}"
        case MessageKind.VOTE | MessageKind.PRE_VOTE:
            text += f" last {place}" + (" by transfer" if message.context else "")
        case MessageKind.VOTE_RESPONSE | MessageKind.PRE_VOTE_RESPONSE:
            text += " no" if message.reject else " yes"
        case MessageKind.HEARTBEAT | MessageKind.HEARTBEAT_RESPONSE:
            text += f" commit {message.commit}" if message.commit else ""
            text += f" for read {message.context.decode()}" if message.context else ""
        case MessageKind.SNAPSHOT if message.snapshot is not None:
            text += f" at {message.snapshot.meta.index}@{message.snapshot.meta.term}"
        case MessageKind.READ_INDEX | MessageKind.READ_INDEX_RESPONSE:
            text += f" {message.context.decode()}" + (f" at {message.index}" * bool(message.index))
        case _:
            pass
    return text


def _records(records: Iterable[Record]) -> str:
    return " ".join(_record(record) for record in records)


def _record(record: Record) -> str:
    if record.kind == Kind.NOOP:
        return "-"
    if record.kind == Kind.MEMBERSHIP:
        change = decode_change(record.payload)
        singles = [f"{_LETTERS[one.kind]}{one.node}" for one in change.changes]
        return f"({' '.join(singles) or 'leave'})"
    return bytes(record.payload).decode()
