"""The state of a run: nodes, network, disks and clients for the verbs of faults, and notes."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import trio

from raftmq.broker.replica.group import node_of
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.outcome import Coverage, Happening, Violation
from raftmq.chaos.real.clients.work import Work
from raftmq.chaos.real.network.protocol import Network
from raftmq.chaos.real.network.rules import Rules

from .nodes import Nodes
from .waiting import wait_found

PATIENCE_SECONDS = 8.0
"""A fault that is due during another fault waits this long for its precondition."""


@dataclass(slots=True)
class RunState:
    """The parts and the state of one run, for the verbs of faults."""

    nodes: Nodes
    rules: Rules
    network: Network
    random: Random
    nursery: trio.Nursery
    """For tasks that outlive a call; cancelled when the run ends."""
    began: float
    """trio's time at the start of the run."""
    workload: Work = field(init=False)
    """The clients; set before the schedule is played."""
    down: dict[int, float] = field(default_factory=dict)
    """Nodes that a fault ended → trio's time from which the operator may start the node."""
    members: set[int] = field(default_factory=set)
    """Nodes that the cluster should have."""
    leaving: set[int] = field(default_factory=set)
    """Nodes that were removed, and must run until no group counts on them."""
    broken: dict[int, bool] = field(default_factory=dict)
    """Nodes whose disk was damaged and that have not recovered since → is the damage latent? Reads
    may miss latent damage, so that such a node never counts as recovered."""
    wiped: set[int] = field(default_factory=set)
    """Nodes of `broken` that lost all files, and should re-enter by themselves."""
    used: set[int] = field(default_factory=set)
    """All numbers that any node ever had."""
    compared: Counter[str] = field(default_factory=Counter)
    """Comparisons that could have shown a violation, by check."""
    struck: Counter[str] = field(default_factory=Counter)
    """Number of times that each fault was made."""
    counts: Counter[str] = field(default_factory=Counter)
    """Other figures, and `skipped: FAULT: why`."""
    happenings: list[Happening] = field(default_factory=list)
    """Events for the time line."""
    violations: list[Violation] = field(default_factory=list)
    """Promises that were seen broken during the run."""
    coverage: Counter[Coverage] = field(default_factory=Counter)
    """Number of strikes in each situation."""
    held: set[int] = field(default_factory=set)
    """Nodes that must stay down while a fault works on their files."""
    files: trio.Lock = field(default_factory=trio.Lock)
    """Held while a fault works on files of nodes."""
    changing: trio.Lock = field(default_factory=trio.Lock)
    """Held while the members are changed."""
    certifying: trio.Lock = field(default_factory=trio.Lock)
    """Held while certificates are changed."""
    copies: Path = Path()
    """Folder for copies of data folders."""

    @property
    def now_ms(self) -> int:
        """Milliseconds since the start of the run."""
        return int((trio.current_time() - self.began) * 1000)

    @property
    def everyone(self) -> list[int]:
        """The members' numbers."""
        return sorted(self.members)

    @property
    def url(self) -> str:
        """The URL for clients: the addresses of all members."""
        return self.nodes.url_of(self.everyone)

    def note(self, node: int, what: str) -> None:
        """Add a sentence to the time line."""
        self.happenings.append(Happening(self.now_ms, node, what))

    def note_end(self, node: int, status: int | None) -> None:
        """Note that a node ended by itself, with its status and its last log line."""
        last = self.nodes.last_words(node).rpartition("\n")[2]
        self.note(node, f"ended with {status}: {last}")

    def complain(self, name: str, text: str) -> None:
        """Note a broken promise as a violation."""
        self.violations.append(Violation(name, self.now_ms, text))

    def node_of(self, event: Event) -> int:
        """The node that an event aims at; see `present` for a node that is no member."""
        return self.present(event.nodes[0])

    def nodes_of(self, event: Event) -> list[int]:
        """The nodes that an event aims at, in the event's order, each once."""
        return list(dict.fromkeys(map(self.present, event.nodes)))

    def present(self, number: int) -> int:
        """The member for a number of the schedule: itself, or another one if it is no member."""
        if number in self.members:
            return number
        return self.everyone[number % len(self.everyone)]

    async def leader(self) -> int:
        """The leader of the first data group. Raises `Skipped` if none is found for a while."""
        found = 0

        async def is_found() -> bool:
            nonlocal found
            leaders = leaders_of(await self.nodes.statuses())
            found = next((leaders[group] for group in sorted(leaders) if group), 0)
            return bool(found)

        # Another fault may have ended the last leader: an election takes a second or two.
        if not await wait_found(is_found, timeout=PATIENCE_SECONDS, look_seconds=0.2):
            raise Skipped("no node leads")
        return found

    def running(self, node: int) -> int:
        """The node's process. Raises `Skipped` if there is none."""
        process = self.nodes.pid(node)
        if not process:
            raise Skipped("the node is down")
        return process

    async def up(self, node: int) -> None:
        """Start a node that is down. Cancelling leaves the node half up."""
        self.note(node, "starts")
        await self.nodes.up(node)

    def end(self, node: int) -> None:
        """End a node's process at once, if it runs."""
        if self.nodes.pid(node):
            self.note(node, "is killed")
        self.nodes.kill(node)

    def kill(self, node: int, *, down_seconds: float | None = None) -> None:
        """End a node's process; the operator starts the node after `down_seconds`, or up to 2 s."""
        self.nodes.resume_quietly(node)
        self.end(node)
        pause = self.random.uniform(0.1, 2.0) if down_seconds is None else down_seconds
        self.down[node] = trio.current_time() + pause
        self.counts["crashes"] += 1

    @asynccontextmanager
    async def stopped(self, *nodes: int, is_dark: bool = False) -> AsyncIterator[None]:
        """Keep nodes down while the context is open, and lock the files of all nodes. `is_dark`
        turns the machines of the nodes off (`Network.unplug`)."""
        async with self.files:
            self.held |= set(nodes)
            try:
                for node in nodes:
                    if is_dark:
                        self.network.unplug(node)
                    self.kill(node)
                yield
            finally:
                self.held -= set(nodes)

    def need_overlay(self) -> None:
        """Raises `Skipped` if disks cannot fail here."""
        if not self.nodes.disks.can_fail:
            raise Skipped("no overlay")

    async def need_health(self, victim: int) -> None:
        """Raises `Skipped` if the other members cannot have intact copies soon."""
        why = ""

        async def is_healthy() -> bool:
            nonlocal why
            why = "another disk is damaged already" if self.broken.keys() - {victim} else ""
            others = self.members - {victim}
            if not why and not goals_of(await self.nodes.statuses(), others, victim):
                why = "the others are not well"
            return not why

        if not await wait_found(is_healthy, timeout=PATIENCE_SECONDS, look_seconds=0.2):
            raise Skipped(why)

    async def wait_intact_elsewhere(
        self, victim: int, *, is_latent: bool, timeout: float = 6.0
    ) -> None:
        """Wait until all other members hold all that a stopped node may have acknowledged.

        Only then may the node's disk be damaged: otherwise the damage could lose acknowledged
        records for good, which no broker could prevent. The others must be up, agree on terms and
        leaders, and hold what their leader holds. Raises `Skipped` if the others do not get there
        in time, or if the node is replaced meanwhile: a node that is no member never recovers.
        """
        others = self.members - {victim}
        goals: dict[int, Goal] = {}
        with trio.move_on_after(timeout):
            while True:
                statuses = await self.nodes.statuses()
                if victim not in self.members:
                    raise Skipped("the node was replaced")
                if not goals:
                    goals = goals_of(statuses, others, victim)
                if goals and are_reached(statuses, goals):
                    self.broken[victim] = is_latent or self.broken.get(victim, False)
                    return
                await trio.sleep(0.1)
        raise Skipped("no intact copy elsewhere")


class Goal(NamedTuple):
    """A record that all voters of a group must hold, for example before a disk is damaged."""

    leader: int
    term: int
    last_index: int
    """Index of the leader's last record when the leader was asked: the leader holds every record
    that was acknowledged before."""
    voters: tuple[int, ...]
    """Member ids."""


def goals_of(
    statuses: dict[int, dict[str, Any]], nodes: set[int], victim: int = 0
) -> dict[int, Goal]:
    """Goals by group; empty unless all `nodes` are up and agree on leaders and terms, and all
    voters are in `nodes`. The victim may be a voter, and is ignored."""
    if not nodes <= statuses.keys():
        return {}
    goals: dict[int, Goal] = {}
    for number, node in leaders_of(statuses).items():
        leader = _replica(statuses, node, number)
        # A joint membership may still need the old member of a node that was wiped.
        if leader.get("voters_outgoing"):
            return {}
        present = [voter for voter in leader["voters"] if node_of(voter) != victim]
        # A voter that is leaving may end at any moment, and then no goal is reached.
        if not {node_of(voter) for voter in present} <= nodes:
            return {}
        for voter in present:
            replica = _replica(statuses, node_of(voter), number)
            # A wiped node re-enters as a new member, which does not hold the old member's records.
            if (replica.get("term"), replica.get("member")) != (leader["term"], voter):
                return {}
        goals[number] = Goal(node, leader["term"], leader["last_index"], tuple(present))
    known = {group["group"] for node in nodes for group in statuses[node]["groups"]}
    return goals if known == goals.keys() else {}


def are_outdated(statuses: dict[int, dict[str, Any]], goals: dict[int, Goal]) -> bool:
    """Does the leader of some goal say that it no longer leads in the goal's term, or that a voter
    of the goal votes no longer?"""
    for number, goal in goals.items():
        leader = _replica(statuses, goal.leader, number)
        if leader and (leader["term"] != goal.term or leader["role"] != "leader"):
            return True
        # A replica whose log was lost enters again as a new member.
        if leader and not set(goal.voters) <= set(leader["voters"]):
            return True
    return False


def are_reached(statuses: dict[int, dict[str, Any]], goals: dict[int, Goal]) -> bool:
    """Does each voter hold the goal's record, as its leader's progress table says?"""
    for number, goal in goals.items():
        leader = _replica(statuses, goal.leader, number)
        if leader.get("term") != goal.term or leader["role"] != "leader":
            return False
        matches = {int(member): p["match"] for member, p in leader["progress"].items()}
        if any(matches.get(voter, 0) < goal.last_index for voter in goal.voters):
            return False
    return True


def _replica(statuses: dict[int, dict[str, Any]], node: int, group: int) -> dict[str, Any]:
    groups = statuses.get(node, {"groups": []})["groups"]
    return next((replica for replica in groups if replica["group"] == group), {})


def leaders_of(statuses: dict[int, dict[str, Any]]) -> dict[int, int]:
    """Partition group → the node that leads it in the highest term."""
    found: dict[int, tuple[int, int]] = {}
    for node, status in statuses.items():
        for group in status["groups"]:
            if group["role"] == "leader":
                number = group["group"]
                found[number] = max(found.get(number, (0, 0)), (group["term"], node))
    return {group: node for group, (_, node) in sorted(found.items())}
