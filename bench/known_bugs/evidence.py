"""Records of pysyncobj's nodes at every step, as evidence for the harness's own checkers.

This module judges nothing: `raftmq.checkers.check_evidence` judges the evidence, with the functions
that judge raftmq and any other system. These need the state of nodes over time, the leaders' view
of their followers, the logs at the end, digests of the state machines, and the answers to clients.

Invariants:
- A moment is noted whenever a node's state differs from its last noted state.
"""

import zlib
from typing import TYPE_CHECKING

from raftmq.checkers.servers.evidence import (
    Acknowledged,
    Entry,
    Evidence,
    Moment,
    NodeLog,
    ProgressAt,
)

if TYPE_CHECKING:
    from bench.known_bugs.cluster import Cluster
    from bench.known_bugs.member import Member

ROLES = ("follower", "candidate", "leader")

LogItem = tuple[bytes, int, int]
"""An entry of pysyncobj's journal: command, index, term."""


class Watch:
    """Records the state of the members after every step."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._timeline: list[Moment] = []
        self._progress: list[ProgressAt] = []
        self._acknowledged: list[Acknowledged] = []
        self._last: dict[int, tuple[object, ...]] = {}
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        self._digests: dict[tuple[int, int], dict[int, int]] = {}
        """(member, life) → index → running digest of the applied values."""

    def started(self, member: "Member") -> None:
        """A process has read its journal."""
        self._digests[member.id, member.lives] = {}
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != member.id}
        self.look(member)

    def look(self, member: "Member") -> None:
        """Note a node's state, if it changed."""
        if member.store is None:
            return
        log = member.inside("raftLog")
        command, last, last_term = log[-1]
        role = ROLES[member.inside("raftState")]
        state = (
            member.lives, role, member.inside("raftCurrentTerm"), _vote(member),
            member.inside("raftCommitIndex"), member.inside("raftLastApplied"), last, last_term,
            command,
        )  # fmt: skip
        if self._last.get(member.id) != state:
            before, self._last[member.id] = self._last.get(member.id), state
            self._moment(member, before, state[:7], _crc((command, last, last_term)))
        if role == "leader":
            self._look_at_followers(member)

    def _moment(
        self, member: "Member", before: object, state: tuple[object, ...], crc: int
    ) -> None:
        cluster = self._cluster
        life, role, term, vote, commit, applied, last = state
        was = before[1] if isinstance(before, tuple) and before[0] == life else ""
        if role == "leader" and was != "leader":
            cluster.counts["elections"] += 1
        moment = Moment(
            cluster.loop.now_us, member.id, life, role, term, vote, commit, applied, last, crc  # type: ignore[arg-type]
        )  # fmt: skip
        self._timeline.append(moment)

    def _look_at_followers(self, leader: "Member") -> None:
        term = leader.inside("raftCurrentTerm")
        following = leader.inside("raftNextIndex")
        for node, match in leader.inside("raftMatchIndex").items():
            seen = match, following[node]
            if self._seen.get((leader.id, node.id)) != seen:
                self._seen[leader.id, node.id] = seen
                at = self._cluster.loop.now_us
                self._progress.append(ProgressAt(at, leader.id, term, node.id, *seen))

    def applied(self, member: "Member", index: int, value: int) -> None:
        """A node's machine has applied a value."""
        digests = self._digests[member.id, member.lives]
        before = digests[max(digests)] if digests else 0
        digests[index] = zlib.crc32(b"%d %d" % (index, value), before)

    def acknowledged(self, member: "Member", value: int, result: object) -> None:
        """A client got the answer that its value is replicated."""
        cluster = self._cluster
        cluster.counts["acked"] += 1
        assert result == value, f"a client that put {value} was answered {result}"
        # pysyncobj calls back before it counts the entry as applied.
        index = member.inside("raftLastApplied") + 1
        entry = next(one for one in _entries(member) if one.index == index)
        self._acknowledged.append(Acknowledged(cluster.loop.now_us, member.id, member.lives, entry))

    def evidence(self) -> Evidence:
        """All evidence of the run; every process must be up."""
        nodes = [
            NodeLog(
                member.id,
                _entries(member),
                commit=member.inside("raftCommitIndex"),
                applied=member.inside("raftLastApplied"),
            )
            for member in self._cluster.at_place.values()
        ]
        return Evidence(
            nodes=tuple(nodes),
            timeline=tuple(self._timeline),
            progress=tuple(self._progress),
            acknowledged=tuple(self._acknowledged),
        )

    def machines(self) -> Evidence:
        """The state machines of all lives, as digests: also those of ended processes must agree."""
        return Evidence(
            nodes=tuple(
                NodeLog(number, (), digests=digests)
                for (number, _), digests in self._digests.items()
            )
        )


def _vote(member: "Member") -> int:
    # The field was renamed when pysyncobj made it persistent.
    for name in ("votedForNodeId", "votedFor"):
        if hasattr(member.store, f"_SyncObj__{name}"):
            return int(member.inside(name) or 0)
    raise AssertionError("this pysyncobj keeps its vote somewhere else")


def _entries(member: "Member") -> tuple[Entry, ...]:
    entries: list[Entry] = []
    before = 0
    for item in member.inside("raftLog")[:]:
        crc = _crc(item)
        entries.append(Entry(item[1], item[2], crc, before))
        before = crc
    return tuple(entries)


def _crc(item: LogItem) -> int:
    command, index, term = item
    return zlib.crc32(bytes(command), zlib.crc32(b"%d %d" % (index, term)))
