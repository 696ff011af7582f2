"""Is there service while a majority is well? Windows of a run, and the calls that succeed in them.

A *stretch* is a time in which the same nodes are well, and a majority of each partition group's
voters is among them. After its first `SETTLE_SECONDS`, which elections and clients need, a stretch
is cut into windows. In each window most calls to each queue have to succeed, at whatever pace the
nodes have. The check looks for no cause: it found a leader that handed over in vain, again and
again, and it judges every workload under every fault.

| what happens | the node is not well | no stretch |
|---|---|---|
| a node is down, starts, stands still, or its disk was damaged | x | |
| a fault of `CONFINED` lasts | those it names | |
| a fault of `HARMLESS` lasts: wrong clocks | | |
| another fault lasts | | x |
| members come or go | | x |

`Absences` goes by the same nodes: one must not become absent while it and the leader have been well
all the time for which it would have been silent, nor as one of half of the nodes.

Invariants:
- Observing changes nothing: no call here has an effect on a node.
- A stretch ends with any change of the well nodes, and with each fault that begins or ends.
- Each judgement is counted (`compared`). A run that had windows, and calls in none of them, is
  vacuous.

Left out: a disk that is slow for long. Its node goes on leading and every call to the node is slow;
the product does not notice that, and does not move the leadership.

Sources: FoundationDB's and VOPR's liveness checks; the shares that service-level objectives state.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raftmq.broker.replica.group import Group, node_of
from raftmq.chaos.faults.schedule import Event
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.run_state import RunState
from raftmq.checkers.history import History, RowType
from raftmq.consensus import Message
from raftmq.log.record import Record
from raftmq.machine.catalog.catalog import SYSTEM_GROUP

CONFINED = frozenset(
    {
        "isolate-node", "split-majority", "mute", "deaf", "restart-storm", "pause",
        "pause-leader", "slow-node", "stall-loop", "full-disk", "full-quota", "low-disk",
        "read-only", "isolate-leader",
    }
)  # fmt: skip
"""Lasting faults that concern the nodes they name, or the leader that they strike, and no other."""
HARMLESS = frozenset(
    {"skew", "step-clock", "drift", "strobe-clock", "periodic-clock", "leap-second"}
)
"""Faults that must cost no availability: no deadline of the service goes by the wall clock."""

LOOK_SECONDS = 0.1
"""Between two looks at which nodes are well."""
SETTLE_SECONDS = 10.0
"""From a change of the well nodes until there must be service: five of the longest election
timeouts at the default pace."""
WINDOW_SECONDS = 10.0
"""Length of a window; a rest that is shorter is not judged."""
CALLS_MIN = 5
"""A window with fewer calls to a queue says nothing of that queue."""
SHARE_MIN = 0.8
"""Share of a window's calls to one queue that must succeed."""
SERVICE_SECONDS_MAX = 20.0
"""From the heal until a call to each queue that is called has succeeded."""
JUDGED = ("send", "write", "read", "pop")
"""Calls that are judged, by the history's names, unless a workload has others."""


WINDOWS = "V7 calls while a majority is well"
"""Name of a comparison: the windows of a run that were judged, by queue and call."""
HEAL = "V7 calls after the heal"
"""Name of a comparison: times from heal to service that were judged, by queue and call."""
LATE_SECONDS = 1.0
"""Bytes that arrive later than this are late: no healthy link takes so long."""
ABSENT = "V13 nodes that became absent"
"""Name of a comparison: absences that were judged."""
TO_SERVICE = "longest from heal to service, ms"
"""Name of the count; at most `SERVICE_SECONDS_MAX`."""


class Window(NamedTuple):
    """A time in which there must be service, in seconds of the world's clock."""

    begin: float
    end: float
    well: tuple[int, ...]
    """The nodes that were well."""


class _Health(NamedTuple):
    """The nodes that are well at one time, and whether service can be required."""

    is_excused: bool
    """True if no service can be required."""
    well: tuple[int, ...]
    changes: int
    """Faults that have begun or ended so far."""


class Availability:
    """The well nodes of one run over time, and the verdict."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._active: dict[int, tuple[Event, tuple[int, ...]]] = {}
        self._changes = 0
        self._health = _Health(True, (), 0)
        self._since = 0.0
        self._well_since: dict[int, float] = {}
        self._is_over = False
        self._healed_at = 0.0
        self.windows: list[Window] = []
        """The windows that can be judged."""
        self.compared: Counter[str] = Counter()
        """Windows and times that were judged, by name."""

    @property
    def lasting(self) -> set[str]:
        """The faults that last now, by name."""
        return {event.fault for event, _ in self._active.values()}

    def well_together(self, *nodes: int) -> float:
        """Seconds for which these nodes have all been well; 0: one is not, or the run is over."""
        if self._is_over:
            return 0.0
        now = self._state.agenda.now
        return min(now - self._well_since.get(node, now) for node in nodes)

    def begin(self) -> None:
        """Look from now on."""
        if not self._is_over:
            self.look()
            self._state.agenda.call_after(LOOK_SECONDS, self.begin)

    def fault_begins(self, number: int, event: Event) -> None:
        """A fault is about to strike; `number` is its place in the schedule."""
        if event.fault in HARMLESS:
            return
        nodes = self._state.nodes_of(event) or [self._state.leader()]
        if event.lasts_ms:
            self._active[number] = event, tuple(nodes)
        self._changes += 1
        self.look()

    def fault_ends(self, number: int) -> None:
        """A fault is over."""
        if self._active.pop(number, None) is not None:
            self._changes += 1
            self.look()

    def heal(self) -> None:
        """All faults are over."""
        self._active.clear()
        self._changes += 1
        self._healed_at = self._state.agenda.now
        self.look()

    def end(self) -> None:
        """Clients have stopped: nothing is judged from now on. It may be called again."""
        if not self._is_over:
            self._close()
        self._is_over = True

    def look(self) -> None:
        """Find out which nodes are well, and close the stretch if that changed."""
        if self._is_over:
            return
        health = self._find()
        if health != self._health:
            self._close()
            self._health, self._since = health, self._state.agenda.now
            self._well_since = {n: self._well_since.get(n, self._since) for n in health.well}

    def _close(self) -> None:
        at = self._since + SETTLE_SECONDS
        while not self._health.is_excused and at + WINDOW_SECONDS <= self._state.agenda.now:
            self.windows.append(Window(at, at + WINDOW_SECONDS, self._health.well))
            at += WINDOW_SECONDS

    def _find(self) -> _Health:
        state, ill = self._state, set(self._state.damaged)
        for event, nodes in self._active.values():
            if event.fault not in CONFINED:
                return _Health(True, (), self._changes)
            ill.update(nodes)
        well = tuple(n for n in state.members() if n not in ill and self._is_up(n))
        is_excused = bool(state.leaving or state.joining) or not self._has_majorities(set(well))
        return _Health(is_excused, well, self._changes)

    def _is_up(self, node: int) -> bool:
        cluster = self._state.cluster
        running, process = cluster.nodes.get(node), cluster.processes.get(node)
        if running is None or process is None:
            return False
        return running.is_serving and not process.is_frozen

    def _has_majorities(self, well: set[int]) -> bool:
        """True if the well nodes are a majority of every membership that may count, in every group,
        and no membership is about to change."""
        nodes, catalog = self._state.cluster.nodes, self._state.newest_catalog()
        carried = {number for node in well for number in nodes[node].groups}
        # A group of one replica, or of few in a large cluster, may have no well node at all.
        if catalog is None or not carried.issuperset(catalog.groups):
            return False
        for node in well:
            for group in nodes[node].groups.values():
                conf = group.conf_state
                coming = set(map(node_of, conf.learners))
                placed = catalog.groups.get(group.number)
                if placed is not None and group.number == SYSTEM_GROUP:
                    # Of many members most learn for good.
                    coming &= set(catalog.voters(placed))
                if conf.voters_outgoing or coming:
                    return False
                if 2 * len(set(map(node_of, conf.voters)) & well) <= len(conf.voters):
                    return False
        return bool(well)

    def judge(self, history: History, judged: Sequence[str] = JUDGED) -> list[Violation]:
        """Violations: windows in which too few calls succeeded, and late service after the heal."""
        calls = list(_calls(history, judged))
        found, began = [], self._state.watch.began
        if self.windows:
            self.compared[WINDOWS] = 0
        for window in self.windows:
            counts: Counter[tuple[str, bool]] = Counter(
                (of, is_ok) for of, begin, _, is_ok in calls if window.begin <= begin < window.end
            )
            for of in sorted({of for of, _ in counts}):
                ok, failed = counts[of, True], counts[of, False]
                if ok + failed < CALLS_MIN:
                    continue
                self.compared[WINDOWS] += 1
                if ok < SHARE_MIN * (ok + failed):
                    text = (
                        f"{of}: {ok} of {ok + failed} calls succeeded in the {WINDOW_SECONDS:g} s "
                        f"from {window.begin - began:.1f} s on, with nodes {window.well} well for "
                        f"{SETTLE_SECONDS:g} s before"
                    )
                    found.append(Violation("V7", int((window.end - began) * 1000), text))
        return found + self._judge_heal(calls)

    def _judge_heal(self, calls: "list[_Call]") -> list[Violation]:
        """Judge the time from the heal until each queue was served."""
        first: dict[str, float] = {}
        tried: dict[str, float] = defaultdict(float)
        for of, begin, end, is_ok in calls:
            if end >= self._healed_at:
                tried[of] = max(tried[of], end - self._healed_at)
                if is_ok and begin >= self._healed_at:
                    first[of] = min(first.get(of, end), end)
        seconds = [first[of] - self._healed_at for of in sorted(first)]
        self.compared[HEAL] = len(tried)
        if seconds:
            self._state.counts[TO_SERVICE] = int(1000 * max(seconds))
        at_ms = self._state.watch.now_ms
        return [
            Violation("V7", at_ms, f"{of}: no call succeeded within {late:.1f} s after the heal")
            for of, late in sorted(tried.items())
            if late > SERVICE_SECONDS_MAX
            and first.get(of, self._healed_at + late) - self._healed_at > SERVICE_SECONDS_MAX
        ]


_Call = tuple[str, float, float, bool]
"""Function and key, when it began and ended, and whether it succeeded."""


def _calls(history: History, judged: Sequence[str]) -> Iterator[_Call]:
    """The calls that ended: a call whose client was killed in the middle proves nothing."""
    begun: dict[int, tuple[str, float]] = {}
    names = [name in judged for name in history.functions]
    for row in range(len(history)):
        operation, function = int(history.operation[row]), int(history.function[row])
        seconds = float(history.time[row]) / 1e9
        if history.type[row] == RowType.INVOKE:
            if names[function]:
                key = int(history.key[row])
                name = history.functions[function]
                begun[operation] = f"{name} {history.keys[key] if key >= 0 else ''}", seconds
        elif operation in begun:
            of, begin = begun.pop(operation)
            yield of, begin, seconds, bool(history.type[row] == RowType.OK)


class Absences:
    """An observer of all nodes: has each absent node been silent, and do most stay present? V13."""

    def __init__(self, cluster: Cluster, availability: Availability) -> None:
        self._cluster = cluster
        self._availability = availability
        self._version = 0
        self._absent: set[int] = set()
        self.wrong: list[str] = []
        """Absences without a reason, in words."""
        self.compared: Counter[str] = Counter()
        """Nodes that were judged."""
        cluster.observers.append(self)

    def sent(self, node: int, group: Group, message: Message) -> None:
        """See `Observer`."""

    def at_border(self, node: int, group: Group, record: Record) -> None:
        """See `Observer`."""

    def applied(self, node: int, group: Group, records: Sequence[Record]) -> None:
        """See `Observer`."""
        catalog = self._cluster.nodes[node].catalog
        if group.number != SYSTEM_GROUP or catalog.version <= self._version:
            return
        new = catalog.absent - self._absent
        self._version, self._absent = catalog.version, set(catalog.absent)
        if new:
            self.compared[ABSENT] += len(new)
        seen = {node.id for node in catalog.nodes.values() if node.incarnation}
        if new & seen and 2 * len(catalog.absent & seen) >= len(seen):
            self.wrong.append(
                f"nodes {sorted(catalog.absent)} of {sorted(catalog.nodes)} are absent: no longer "
                "most are present"
            )
        bound = self._cluster.balance.absent_ms / 1000 + LOOK_SECONDS
        for each in sorted(new):
            leader = self._cluster.leader(SYSTEM_GROUP)
            seconds = self._availability.well_together(each, leader)
            if seconds > bound and not self._is_late(each, leader):
                self.wrong.append(
                    f"node {each} is absent, and it and the leader have been well for {seconds:.1f}"
                    f" s; {bound:.1f} s of silence were needed"
                )

    def _is_late(self, node: int, leader: int) -> bool:
        """Whether bytes between two nodes are under way since a fault that has ended: all that was
        sent after them waits."""
        network, hosts = self._cluster.network, (f"node{node}", f"node{leader}")
        ways = (network.pipes(*hosts), network.pipes(*reversed(hosts)))
        latest = max((pipe.arrives for pipes in ways for pipe in pipes), default=0.0)
        return latest > self._cluster.agenda.now + LATE_SECONDS
