"""Every kind of fault, by name: what it does, whom it hits, and in which worlds it can be made.

The codes are those of the literature list the kinds were gathered from: N network, P process,
D disk, C clock, M membership, K client; A (access) is our own.

| world | what it is |
|---|---|
| core | consensus cores with logs, no brokers: a hundred thousand events a second |
| sim | whole brokers and clients on a simulated network, disk and clock |
| real | real processes, through signals, a proxy or namespaces, files, the disk overlay |

Invariants:
- A name stands for one kind of fault in every world, so a schedule of one world can be played in
  another; the simulated disk makes `interrupted-write` as `short-write`. Faults that several worlds
  make are written once, over the verbs of an `arena`.
- A fault that lasts is undone at its end, and by a heal; a fault that does not last happens once.

Sources: Jepsen's nemeses, TigerBeetle's VOPR, FoundationDB's simulation, etcd's robustness tests;
OmniPaxos (EuroSys 2023) for N10-N12; "Can applications recover from fsync failures" (ATC 2020) for
D4; Redpanda's and RocketMQ's published failures for the mixtures.
"""

from collections.abc import Container, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from raftmq.words import did_you_mean


class World(Enum):
    """Where a schedule is played."""

    CORE = "core"
    SIM = "sim"
    REAL = "real"


class Aim(Enum):
    """The target of a fault. The draw of a schedule chooses nodes; the play chooses leaders."""

    NONE = "none"
    """The cluster as a whole, or clients."""
    ONE = "one"
    """One node."""
    MINORITY = "minority"
    """Fewer than half of the nodes, at least one."""
    MAJORITY = "majority"
    """More than half of the nodes."""
    ALL = "all"
    """Every node."""
    LEADER = "leader"
    """The leader of the busiest partition group at that moment."""
    PAIR = "pair"
    """Two nodes: the link between them, or one in the role of the other."""


class Fault(NamedTuple):
    """One kind of fault."""

    name: str
    """The name in schedules, on the command line and in reports."""
    code: str
    """Its place in the list, such as `N8`."""
    what: str
    """One sentence for people."""
    worlds: frozenset[World]
    """The worlds in which it can be made."""
    aim: Aim = Aim.ONE
    """The target."""
    lasts: bool = False
    """True: it begins and ends; False: it happens."""
    levels: tuple[float, ...] = ()
    """Strengths to draw from; empty: it has none."""
    unit: str = ""
    """Unit of the levels."""
    nodes_min: int = 1
    """Smallest cluster in which it is a fault of its own; it is not drawn for smaller ones."""
    needs_users: bool = False
    """True: only a cluster whose nodes know each other and their users can have it. It is added to
    schedules (`with_access`), and is not drawn among the others."""
    is_drawn: bool = True
    """False: it is added to some schedules (`with_visits`), and not drawn among the others: a seed
    from before it has the events that it had."""


_CORE, _SIM, _REAL = World.CORE, World.SIM, World.REAL
_EVERYWHERE = frozenset({_CORE, _SIM, _REAL})
_SIMULATED = frozenset({_CORE, _SIM})
_BROKERS = frozenset({_SIM, _REAL})
_ONLY_CORE = frozenset({_CORE})
_ONLY_SIM = frozenset({_SIM})
_ONLY_REAL = frozenset({_REAL})
_NODES_MIN = {Aim.PAIR: 2}


def _lasting(
    name: str,
    code: str,
    what: str,
    worlds: frozenset[World],
    aim: Aim = Aim.ONE,
    levels: tuple[float, ...] = (),
    unit: str = "",
) -> Fault:
    return Fault(name, code, what, worlds, aim, True, levels, unit, _NODES_MIN.get(aim, 1))


def _once(
    name: str,
    code: str,
    what: str,
    worlds: frozenset[World],
    aim: Aim = Aim.ONE,
    levels: tuple[float, ...] = (),
    unit: str = "",
) -> Fault:
    return Fault(name, code, what, worlds, aim, False, levels, unit, _NODES_MIN.get(aim, 1))


_NETWORK = (
    _lasting("isolate-node", "N1", "One node is cut off from all others.", _EVERYWHERE),
    _lasting("split-majority", "N2", "A majority, with the clients, and a minority cannot reach "
             "each other.", _EVERYWHERE, Aim.MINORITY),
    _lasting("split-minority-third", "N3", "A third of the nodes, with the clients, is cut off "
             "from the rest.", _EVERYWHERE, Aim.MINORITY),
    _lasting("split-halves", "N4", "Two random sides cannot reach each other; the clients are on "
             "one of them.", _EVERYWHERE, Aim.MINORITY),
    _lasting("isolate-leader", "N5", "The leader is cut off from all others.",
             _EVERYWHERE, Aim.LEADER),
    _lasting("bridge", "N6", "Two sides cannot reach each other, but one node reaches both; of "
             "three nodes: a chain.", _EVERYWHERE),
    _lasting("majorities-ring", "N7", "Every node sees a majority, and no two see the same one.",
             _EVERYWHERE, Aim.ALL)._replace(nodes_min=4),
    _lasting("mute", "N8", "No other node hears a node; it hears everything.", _EVERYWHERE),
    _lasting("deaf", "N9", "A node hears no other node; its messages arrive.", _EVERYWHERE),
    _lasting("quorum-loss", "N10", "All nodes reach one node and no other, the leader too; of "
             "three nodes: a chain.", _EVERYWHERE),
    _lasting("constrained-election", "N11", "Only a node with an old log reaches a majority.",
             _EVERYWHERE),
    _lasting("chain", "N12", "Each node reaches its neighbours in a row, so the ends never meet.",
             _EVERYWHERE, Aim.ALL),
    _lasting("cut-clients", "N13", "Clients cannot reach the leader; its followers can.",
             _BROKERS, Aim.LEADER),
    _lasting("flap", "N14", "A link goes up and down faster than an election timeout.",
             _EVERYWHERE, Aim.PAIR, (20, 100, 400), "ms"),
    _lasting("swizzle", "N15", "Nodes are cut off one by one and come back in another order.",
             _EVERYWHERE, Aim.ALL),
    _lasting("delay", "N16", "Everything takes longer, sometimes much longer.",
             _EVERYWHERE, Aim.ALL, (5, 50, 500), "ms"),
    _lasting("reorder", "N17", "Messages overtake each other: within the core's network, and "
             "between connections of brokers.", _EVERYWHERE, Aim.ALL, (0.05, 0.3), "share"),
    _lasting("duplicate", "N18", "Messages arrive twice: within the core's network, and as "
             "requests repeated on another connection.", _EVERYWHERE, Aim.ALL,
             (0.05, 0.3), "share"),
    _lasting("loss", "N19", "Messages are lost; a stream of a broker breaks where one is.",
             _EVERYWHERE, Aim.ALL, (0.01, 0.1, 0.5), "share"),
    _lasting("burst-loss", "N20", "Whole stretches of time are lost.",
             _EVERYWHERE, Aim.ALL, (50, 300), "ms"),
    _once("stale-replay", "N21", "Messages of long ago arrive again.", _EVERYWHERE, Aim.PAIR),
    _lasting("slow-link", "N22", "A link carries so little that it fills up.",
             _BROKERS, Aim.PAIR, (12_500, 125_000), "bytes/s"),
    _once("cut-in-frame", "N23", "A connection breaks in the middle of a frame.",
          _BROKERS, Aim.PAIR),
    _lasting("half-open", "N23", "A connection takes everything and never answers.",
             _BROKERS, Aim.PAIR),
    _once("corrupt-frame", "N23", "Bytes on their way are changed.", _BROKERS, Aim.PAIR),
    _lasting("drop-kind", "N24", "One kind of message is lost, and no other: votes, answers to "
             "appends, heartbeats, chunks of snapshots.", _EVERYWHERE, Aim.ALL,
             (1, 2, 3, 4), "kind"),
    _lasting("outage", "N30", "Every link is cut, for such a time that TCP's next try is far "
             "away.", _ONLY_SIM, Aim.ALL, (10, 30, 60), "s"),
    _lasting("lost-names", "N27", "No name can be looked up.", _ONLY_SIM, Aim.ALL),
    _lasting("strangers", "N28", "A stranger says Hello as any node, leaves frames unfinished, is "
             "silent on many connections, and answers anything.", _BROKERS),
    _once("old-address", "N25", "A node of another cluster answers at a node's address.",
          _ONLY_SIM, Aim.PAIR),
    _once("needless-snapshot", "N26", "Members are sent snapshots that they do not need.",
          _ONLY_CORE),
    _lasting("late-kind", "N29", "One kind of message comes late, or comes and comes again late, "
             "when others have overtaken it: votes, answers to appends, heartbeats, "
             "snapshots, appends, answers to heartbeats.", _ONLY_CORE, Aim.ALL,
             (1, 1, 2, 3, 4, 5, 6), "kind"),
)  # fmt: skip

_PROCESSES = (
    _once("kill", "P1", "A process ends at once; its disk keeps all that the system took.",
          _EVERYWHERE),
    _once("kill-minority", "P1", "A minority of the processes ends at once.",
          _EVERYWHERE, Aim.MINORITY),
    _once("kill-majority", "P1", "A majority of the processes ends at once.",
          _EVERYWHERE, Aim.MAJORITY),
    _once("kill-all", "P1", "All processes end at once.", _EVERYWHERE, Aim.ALL),
    _once("kill-leader", "P2", "The leader ends at once.", _EVERYWHERE, Aim.LEADER),
    _lasting("restart-storm", "P3", "A process ends again each time it has come up.",
             _EVERYWHERE, Aim.ONE, (200, 1000), "ms"),
    _once("rolling-restart", "P4", "Node after node is stopped and started.",
          _EVERYWHERE, Aim.ALL),
    _lasting("pause", "P5", "A process stands still while the world goes on.", _EVERYWHERE),
    _lasting("pause-leader", "P5", "The leader stands still past its election timeout.",
             _EVERYWHERE, Aim.LEADER),
    _once("pause-kill", "P6", "A process stands still, then ends without having moved.",
          _EVERYWHERE),
    _lasting("slow-node", "P7", "A process gets little of its processor.",
             _EVERYWHERE, Aim.ONE, (2, 10), "times"),
    _once("crash-point", "P8", "A process ends at a failpoint of the code, the next time it "
          "comes there.", _EVERYWHERE),
    _lasting("no-descriptors", "P9", "A process may open no more files or sockets.", _ONLY_REAL),
    _lasting("stall-loop", "P10", "The event loop is held up by one long step.",
             _BROKERS, Aim.ONE, (300, 3000), "ms"),
    _once("crash-write", "P13", "A process ends right after its next write of records.",
          _ONLY_SIM, Aim.MINORITY),
    _once("stop", "P11", "A process is asked to end, in the middle of work.",
          _BROKERS),
    _lasting("slow-apply", "P14", "State machines lag behind what is committed.",
             _ONLY_CORE, Aim.MAJORITY, (200, 1000, 3000), "ms"),
    _once("kill-then-power", "P12", "A process ends before a sync, starts again, and its machine "
          "loses power within a second.", _ONLY_CORE),
)  # fmt: skip

_DISKS = (
    _once("power-loss", "D1", "A machine loses power: what was not synced is lost, kept or torn, "
          "names of files too.", _EVERYWHERE),
    _once("power-loss-majority", "D1", "A majority of the machines loses power at once.",
          _EVERYWHERE, Aim.MAJORITY),
    _once("power-loss-all", "D1", "All machines lose power at once.", _EVERYWHERE, Aim.ALL),
    _once("torn-write", "D2", "A machine loses power inside a write: some sectors of it are on "
          "the disk, in any order.", _EVERYWHERE),
    _once("sync-error", "D3", "A sync fails.", _EVERYWHERE),
    _once("sync-lies", "D4", "A sync fails, the next one succeeds, and the data is lost.",
          _EVERYWHERE),
    _once("write-error", "D5", "A write fails.", _EVERYWHERE),
    _once("read-error", "D6", "A read fails.", _EVERYWHERE),
    _lasting("full-disk", "D7", "No more bytes fit on the disk.",
             _EVERYWHERE, Aim.ONE, (0, 1000, 100_000), "bytes"),
    _lasting("full-quota", "D8", "A quota is used up: another error, the same meaning.",
             _BROKERS, Aim.ONE, (0, 10_000), "bytes"),
    _lasting("low-disk", "D23", "A disk has little more left than the reserve, or less.",
             _ONLY_SIM, Aim.ONE, (0.25, 0.75, 1.1), "of the reserve"),
    _once("short-write", "D9", "A write takes a part of the bytes and says so.", _BROKERS),
    _once("interrupted-write", "D10", "A system call is interrupted by a signal.", _BROKERS),
    _once("bit-flip", "D11", "A bit of a stored record changes.", _EVERYWHERE),
    _once("bad-sector", "D12", "A sector reads as zeros.", _EVERYWHERE),
    _once("unreadable-sector", "D24", "Sectors of a file answer with an error until they are "
          "written again.", _SIMULATED),
    _once("misdirected-write", "D13", "A piece of a file is found where another belongs.",
          _EVERYWHERE),
    _once("lost-write", "D14", "A write that was synced was never done: the old bytes are back.",
          _EVERYWHERE),
    _once("time-travel", "D15", "A file is as it was some time ago.", _BROKERS),
    _once("cut-tail", "D16", "A stopped node's last file has lost its end.", _EVERYWHERE),
    _once("missing-segment", "D16", "A stopped node has lost a file in the middle of its log.",
          _BROKERS),
    _once("lost-hard-state", "D17", "A stopped node's record of its vote is missing or old.",
          _EVERYWHERE),
    _once("wipe", "D18", "A node comes back with an empty disk.", _EVERYWHERE),
    _once("clone", "D19", "A node comes back with the disk of another.", _BROKERS, Aim.PAIR),
    _lasting("read-only", "D20", "The disk can be read only.", _BROKERS),
    _lasting("slow-disk", "D21", "Every call to the disk takes longer.",
             _EVERYWHERE, Aim.ONE, (10, 100, 1000), "times"),
    _once("lose-group", "D25", "A stopped node has lost the log of one partition group.",
          _ONLY_SIM),
    _once("sync-reordered", "D22", "A machine loses power; of two files that were synced one "
          "after the other, only the later is whole.", _ONLY_SIM),
)  # fmt: skip

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
# Both lengths are powers of two: a draw among eight takes as much of the seed as one among four.
_SKEWS_MS = (
    -_MINUTE_MS, -500, 500, _MINUTE_MS, -2 * _HOUR_MS, 2 * _HOUR_MS, -3 * _DAY_MS, 3 * _DAY_MS,
)  # fmt: skip
_STEPS_MS = (
    -_DAY_MS, -3000, 3000, _DAY_MS, -10 * _MINUTE_MS, 10 * _MINUTE_MS, -5 * _HOUR_MS, 5 * _HOUR_MS,
)  # fmt: skip

_CLOCKS = (
    _lasting("skew", "C1", "A node's clock is off by a constant.",
             _EVERYWHERE, Aim.ONE, _SKEWS_MS, "ms"),
    _once("step-clock", "C2", "A node's clock jumps, forward or back.",
          _EVERYWHERE, Aim.ONE, _STEPS_MS, "ms"),
    _lasting("drift", "C3", "A node's clock runs fast or slow.",
             _EVERYWHERE, Aim.ONE, (-0.1, -0.0005, 0.0005, 0.1), "share"),
    _lasting("strobe-clock", "C4", "A node's clock jumps back and forth all the time.",
             _EVERYWHERE, Aim.ONE, (200, 5000), "ms"),
    _lasting("periodic-clock", "C5", "A node's clock swings slowly around the right time.",
             _EVERYWHERE, Aim.ONE, (1000, 10_000), "ms"),
    _once("leap-second", "C6", "A second happens twice on all clocks.", _EVERYWHERE, Aim.ALL),
    _once("stall-monotonic", "C7", "Time jumps for a whole machine, as after a suspend.",
          _SIMULATED, Aim.ONE, (1000, 30_000), "ms"),
)  # fmt: skip

_MEMBERS = (
    _once("add-voter", "M1", "A node is added to the groups.", _EVERYWHERE),
    _once("remove-voter", "M1", "A node is removed from the groups.", _EVERYWHERE),
    _once("promote-learner", "M2", "A learner becomes a voter.", _SIMULATED),
    _once("replace-node", "M3", "A new node takes the place of another.", _EVERYWHERE, Aim.PAIR),
    _once("remove-leader", "M4", "The leader is removed.", _SIMULATED, Aim.LEADER),
    _once("two-changes", "M5", "A change of members is asked for while another is under way.",
          _EVERYWHERE, Aim.PAIR),
    _once("change-when-cut", "M6", "A change of members is asked for during a partition.",
          _EVERYWHERE, Aim.PAIR),
    _once("rejoin", "M7", "A removed node comes back with its old data.", _EVERYWHERE),
    _lasting("slow-change", "M9", "Members change while some disks are slow, and processes end "
             "right after they wrote it.", _ONLY_CORE, Aim.ONE, (100, 400, 1500), "times"),
    _once("return", "M10", "A removed node comes back with an empty disk and a new number.",
          _ONLY_CORE),
    _once("move-group", "M11", "A data group moves to other nodes, or back to where it was.",
          _ONLY_SIM, Aim.NONE),
    _once("return-node", "M12", "A node that left is added again with the disk that it had.",
          _ONLY_SIM),
    _once("return-blank", "M12", "A node that left is added again with an empty disk.", _ONLY_SIM),
    _lasting("drain", "M13", "A node is drained: others lead what it led.",
             _BROKERS)._replace(is_drawn=False),
    _once("balance", "M14", "An operator evens out the cluster: groups move, leaders change.",
          _BROKERS, Aim.NONE)._replace(is_drawn=False),
)  # fmt: skip

_CLIENTS = (
    _once("client-crash", "K1", "A client ends between a send and its answer.",
          _BROKERS, Aim.NONE),
    _lasting("client-hang", "K2", "A consumer stands still and holds what it was handed.",
             _BROKERS, Aim.NONE),
    _lasting("client-slow", "K3", "A consumer needs longer than it may.", _BROKERS, Aim.NONE),
    _once("client-resend", "K4", "A batch is sent again, to another leader, with its old number.",
          _BROKERS, Aim.NONE),
    _once("client-ack-twice", "K5", "A position is committed twice.", _BROKERS, Aim.NONE),
    _once("client-ack-late", "K6", "A position is committed after a later one.",
          _BROKERS, Aim.NONE),
    _once("client-churn", "K9", "Consumers come and go.", _BROKERS, Aim.NONE),
    _lasting("retry-storm", "K11", "All clients send everything again at once.",
             _BROKERS, Aim.NONE),
)  # fmt: skip

_ACCESS = tuple(
    fault._replace(needs_users=True)
    for fault in (
        _lasting("drop-user", "A1", "The users of the clients are deleted, and made again.",
                 _ONLY_SIM, Aim.NONE),
        _lasting("deny-pop", "A2", "A user may pop no topic for a while, with messages in hand.",
                 _ONLY_SIM, Aim.NONE),
        _lasting("deny-group", "A2", "A user may read no consumer group for a while, with messages "
                 "in hand.", _ONLY_SIM, Aim.NONE),
        _once("certificate-expiry", "A3", "A node's certificate expires; the node gets another "
              "one after a while.", _ONLY_REAL),
        _once("ca-rotation", "A4", "Another authority takes the place of the one that made all "
              "certificates.", _ONLY_REAL, Aim.NONE),
    )
)  # fmt: skip

FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        fault.name: fault
        for fault in (*_NETWORK, *_PROCESSES, *_DISKS, *_CLOCKS, *_MEMBERS, *_CLIENTS, *_ACCESS)
    }
)
"""Every kind, by name."""

_PARTITIONS = frozenset(f"N{number}" for number in range(1, 16))

FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "partition": tuple(fault.name for fault in _NETWORK if fault.code in _PARTITIONS),
        "network": tuple(fault.name for fault in _NETWORK),
        "process": tuple(fault.name for fault in _PROCESSES),
        "disk": tuple(fault.name for fault in _DISKS),
        "clock": tuple(fault.name for fault in _CLOCKS),
        "membership": tuple(fault.name for fault in _MEMBERS),
        "client": tuple(fault.name for fault in _CLIENTS),
        "access": tuple(fault.name for fault in _ACCESS),
    }
)
"""Names for many kinds at once; `partition` is every way to cut nodes off from each other."""


def expanded(names: Iterable[str], can: Container[str]) -> list[str]:
    """Names of faults, with families replaced by those of their kinds that can be made.

    >>> expanded(["kill", "client"], {"kill", "client-hang", "client-slow"})
    ['kill', 'client-hang', 'client-slow']
    """
    found: list[str] = []
    for name in names:
        kinds = [kind for kind in FAMILIES.get(name, ()) if kind in can]
        # A family without such kinds stays as a name, so that the caller's look-up reports it.
        found += kinds or [name]
    return list(dict.fromkeys(found))


def nearest(name: str, known: Iterable[str] = ()) -> str:
    """A hint for an error about a name that no fault, family or `known` name has; may be empty.

    >>> nearest("kil-leader"), nearest("xyz")
    ('; did you mean kill-leader?', '')
    """
    names = dict.fromkeys([*FAULTS, *FAMILIES, *known])
    return "" if name in names else did_you_mean(name, names)


def of_world(world: World, *, has_users: bool = False, has_added: bool = False) -> list[Fault]:
    """The kinds that are drawn for a world, in the order of the catalogue.

    Args:
        world: where they can be made.
        has_users: True: also those that need nodes which know their users.
        has_added: True: also those that are only added to schedules.
    """
    return [
        fault
        for fault in FAULTS.values()
        if world in fault.worlds
        and (has_users or not fault.needs_users)
        and (fault.is_drawn or has_added)
    ]
