"""What handlers of faults act upon: nodes, network, disks, clients, and a note of what they did."""

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
from raftmq.chaos.outcome import Coverage, Happening, Violation
from raftmq.chaos.real.clients.work import Work
from raftmq.chaos.real.network.protocol import Network
from raftmq.chaos.real.network.rules import Rules

from .nodes import Nodes
from .waiting import wait_found

PATIENCE_SECONDS = 8.0
"""A fault that is due in the middle of another one waits this long for what it needs."""


class Skipped(Exception):
    """A fault was not made; the text says why, in few words: it is counted by them."""


@dataclass(slots=True)
class Stage:
    """One run, as handlers see it."""

    nodes: Nodes
    rules: Rules
    network: Network
    random: Random
    nursery: trio.Nursery
    """For what goes on after a handler returned; it ends when everything heals."""
    began: float
    """trio's time at the start of the run."""
    workload: Work = field(init=False)
    """The clients; set before anything is played."""
    down: dict[int, float] = field(default_factory=dict)
    """Nodes that were made to end → trio's time from which they may be started again."""
    members: set[int] = field(default_factory=set)
    """Nodes that the cluster is to have."""
    leaving: set[int] = field(default_factory=set)
    """Nodes that were removed, and must run on as long as a group counts on them."""
    broken: dict[int, bool] = field(default_factory=dict)
    """Nodes whose disk was damaged and who were not seen whole since → whether they might never
    be, as the damage may lie where nobody looks."""
    wiped: set[int] = field(default_factory=set)
    """Those of them that lost everything, and are to re-enter by themselves."""
    used: set[int] = field(default_factory=set)
    """All numbers that a node ever had."""
    compared: Counter[str] = field(default_factory=Counter)
    """Comparisons that could have shown a violation, by check."""
    struck: Counter[str] = field(default_factory=Counter)
    """How often each fault was made."""
    counts: Counter[str] = field(default_factory=Counter)
    """Other figures, and `skipped: FAULT: why`."""
    happenings: list[Happening] = field(default_factory=list)
    """For the time line."""
    violations: list[Violation] = field(default_factory=list)
    """What was seen broken while the run went on."""
    coverage: Counter[Coverage] = field(default_factory=Counter)
    """In which situations faults struck."""
    held: set[int] = field(default_factory=set)
    """Nodes that stay down while somebody works on their files."""
    files: trio.Lock = field(default_factory=trio.Lock)
    """Held by who works on files."""
    changing: trio.Lock = field(default_factory=trio.Lock)
    """Held by who changes the members."""
    copies: Path = Path()
    """Where copies of data folders are kept."""

    @property
    def now_ms(self) -> int:
        """Since the start of the run."""
        return int((trio.current_time() - self.began) * 1000)

    @property
    def everyone(self) -> list[int]:
        """The members' numbers."""
        return sorted(self.members)

    @property
    def url(self) -> str:
        """What clients connect to: the members' addresses."""
        return f"raftmq://{','.join(map(self.nodes.address, self.everyone))}"

    def note(self, node: int, what: str) -> None:
        """Put something on the time line."""
        self.happenings.append(Happening(self.now_ms, node, what))

    def note_end(self, node: int, status: int | None) -> None:
        """A node has ended by itself."""
        last = self.nodes.last_words(node).rpartition("\n")[2]
        self.note(node, f"ended with {status}: {last}")

    def complain(self, name: str, text: str) -> None:
        """A promise was seen broken."""
        self.violations.append(Violation(name, self.now_ms, text))

    def node_of(self, event: Event) -> int:
        """The node that an event is about; one that was replaced stands for its successor."""
        return self.present(event.nodes[0])

    def nodes_of(self, event: Event) -> list[int]:
        """The nodes that an event is about, in its order, each once."""
        return list(dict.fromkeys(map(self.present, event.nodes)))

    def present(self, number: int) -> int:
        """A member's number for one of the schedule."""
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
            raise Skipped("nobody leads")
        return found

    def running(self, node: int) -> int:
        """The node's process. Raises `Skipped` if there is none."""
        process = self.nodes.pid(node)
        if not process:
            raise Skipped("the node is down")
        return process

    async def up(self, node: int) -> None:
        """Start a node that is down. Cancelling leaves it half up."""
        self.note(node, "starts")
        await self.nodes.up(node)

    def end(self, node: int) -> None:
        """End a node's process at once, if it runs."""
        if self.nodes.pid(node):
            self.note(node, "is killed")
        self.nodes.kill(node)

    def kill(self, node: int, *, down_seconds: float | None = None) -> None:
        """End a node's process; it is started again after a while."""
        self.nodes.resume_quietly(node)
        self.end(node)
        pause = self.random.uniform(0.1, 2.0) if down_seconds is None else down_seconds
        self.down[node] = trio.current_time() + pause
        self.counts["crashes"] += 1

    @asynccontextmanager
    async def stopped(self, *nodes: int, is_dark: bool = False) -> AsyncIterator[None]:
        """While it is open these nodes are down, and nobody else works on any node's files. With
        `is_dark` their machines are: they say no word to those that they were connected to."""
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
        """Raises `Skipped` if it is hopeless to wait for intact copies elsewhere."""
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

        Only then its disk may be damaged: else what it acknowledged could be lost for good, which
        no broker could prevent. The others must be up, agree on terms and leaders, and have what
        their leader has. Raises `Skipped` if that does not come about, or the node is replaced
        meanwhile: nobody would wait for it to be whole again.
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
    """What members of a group must have before another one's disk may be damaged."""

    leader: int
    term: int
    last_index: int
    """The leader's last record when it was asked: it has all that was ever acknowledged."""
    voters: tuple[int, ...]
    """Member ids."""


def goals_of(
    statuses: dict[int, dict[str, Any]], nodes: set[int], victim: int = 0
) -> dict[int, Goal]:
    """By group; empty if these nodes are not all up and agreed on who leads in which term, or a
    group has a voter that is none of them. The victim may be one, and is not looked at."""
    if not nodes <= statuses.keys():
        return {}
    goals: dict[int, Goal] = {}
    for number, node in leaders_of(statuses).items():
        leader = _replica(statuses, node, number)
        # A joint membership may still need the lost self of a node that was wiped.
        if leader.get("voters_outgoing"):
            return {}
        present = [voter for voter in leader["voters"] if node_of(voter) != victim]
        # One that leaves may be gone any moment.
        if not {node_of(voter) for voter in present} <= nodes:
            return {}
        for voter in present:
            replica = _replica(statuses, node_of(voter), number)
            # A node that was wiped is not the member that it was.
            if (replica.get("term"), replica.get("member")) != (leader["term"], voter):
                return {}
        goals[number] = Goal(node, leader["term"], leader["last_index"], tuple(present))
    known = {group["group"] for node in nodes for group in statuses[node]["groups"]}
    return goals if known == goals.keys() else {}


def are_outdated(statuses: dict[int, dict[str, Any]], goals: dict[int, Goal]) -> bool:
    """Whether some leader of a goal says that it leads no longer in that term."""
    for number, goal in goals.items():
        leader = _replica(statuses, goal.leader, number)
        if leader and (leader["term"] != goal.term or leader["role"] != "leader"):
            return True
    return False


def are_reached(statuses: dict[int, dict[str, Any]], goals: dict[int, Goal]) -> bool:
    """Whether each voter holds what its goal says, by its leader's word."""
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
    """Partition group → who leads it, by the highest term."""
    found: dict[int, tuple[int, int]] = {}
    for node, status in statuses.items():
        for group in status["groups"]:
            if group["role"] == "leader":
                number = group["group"]
                found[number] = max(found.get(number, (0, 0)), (group["term"], node))
    return {group: node for group, (_, node) in sorted(found.items())}
