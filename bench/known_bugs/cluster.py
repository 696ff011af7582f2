"""The members together, with the interface that the core simulator's fault handlers use.

The handlers of `raftmq.chaos.core` reach a cluster through a `CoreArena`; the attributes that they
use have the same names here: `network`, `loop`, `at_place`, `leader()`, `counts`.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.known_bugs.evidence import Watch
from bench.known_bugs.member import Edition, Member
from bench.known_bugs.streams import Streams
from raftmq.chaos.core.loop import Loop, Trace
from raftmq.chaos.core.network import Network
from raftmq.consensus import Message

BATCHES_SHARE = 0.7
"""Share of the runs with pysyncobj's `appendEntriesUseBatch` on, as by default."""

LEADER = 2
"""pysyncobj's number for the state of a leader."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The leader, in the form that handlers expect."""

    node: Member


class Cluster:
    """Members, network, streams and evidence of one run."""

    def __init__(self, seed: int, nodes: int, edition: Edition, folder: Path) -> None:
        self.seed = seed
        self.edition = edition
        self.random = Random(f"known bugs {seed}")
        self.loop = Loop()
        self.trace = Trace()
        self.counts: Counter[str] = Counter()
        self.errors: dict[str, int] = {}
        """Exception that pysyncobj raised → the seed."""
        self.uses_batches = self.random.random() < BATCHES_SHARE
        self.network = Network(self.loop, Random(f"network {seed}"), _deliver_nothing)
        self.streams = Streams(self.loop, self.network, Random(f"streams {seed}"))
        self.watch = Watch(self)
        self.at_place: dict[int, Member] = {}
        """Member by number, which is also its place: no member is ever replaced."""
        for number in range(1, nodes + 1):
            self.at_place[number] = Member(number, self, folder / str(number))
        edition.arrange(lambda: self.loop.now_us / 1e6, Random(f"pysyncobj {seed}"))

    @property
    def nodes(self) -> dict[int, Member]:
        """The same as `at_place`."""
        return self.at_place

    def begin(self) -> None:
        """Start all processes."""
        for member in self.at_place.values():
            member.start()
        self.streams.begin(list(self.at_place.values()))

    def leader(self) -> Leading | None:
        """The leader of the highest term, which may be cut off; None: no member leads."""
        leading = [one for one in self.at_place.values() if one.is_up and _leads(one)]
        newest = max(leading, key=lambda one: int(one.inside("raftCurrentTerm")), default=None)
        return None if newest is None else Leading(newest)

    def is_agreed(self) -> bool:
        """Are all members up, under one leader, with one log that is committed and applied?"""
        members = list(self.at_place.values())
        if not all(one.is_up for one in members) or sum(map(_leads, members)) != 1:
            return False
        ends = {
            end
            for one in members
            for end in (
                one.inside("raftLog")[-1][1],
                one.inside("raftCommitIndex"),
                one.inside("raftLastApplied"),
            )
        }
        return len(ends) == 1


def _leads(member: Member) -> bool:
    return bool(member.inside("raftState") == LEADER)


def _deliver_nothing(message: Message) -> None:
    raise AssertionError(f"raftmq's Raft messages are not sent here: {message}")
