"""Producer sessions: a batch that is sent twice is stored once.

A producer numbers its messages for each queue: 0, 1, 2, … A batch says (producer, epoch, first
sequence, count). The session of (producer, queue) knows the next sequence it expects:

| first sequence | meaning | answer |
|---|---|---|
| equal to `next` | new | stored, `next` grows by count |
| below `next` | a repeat after a lost answer | the offset that it got the first time |
| above `next` | one before it is missing | refused, `OUT_OF_ORDER`: the producer resends in order |

The session remembers where batches went as *runs*: pairs (first sequence, base offset) between
which both grow in step. A queue with one producer has one run, whatever the number of batches.

*Claimed sessions.* A producer whose work outlives its process (a task that is tried again) does not
choose its epoch but claims one: a claim names the producer, its queues and a *label*, which names
the work and grows with each piece of work.

| label | the session |
|---|---|
| the same as before | goes on at its next sequence: an earlier attempt has stored what is below |
| higher | begins again at 0 |
| lower | refused, `FENCED`: later work has begun |

*Parts.* Work whose messages are cut into parts has a session for each part, and one of its own that
knows how the work is cut: each claim of that session names its part, or their number, or both. The
session keeps the highest part and the number, and a claim that contradicts them is refused: after
another cut, messages of a part that is stored already would come again in another part.

Each claim that is granted gives a new epoch, and batches of any other are refused: so of all
attempts only the last to claim can store anything, and its claim's result has what others stored.

Invariants:
- A session begins at sequence 0. If it began anywhere, a batch that overtook a lost one after a
  change of leader would make the lost one look like a repeat: acked, but not stored.
- A higher epoch replaces the session; a lower one is refused for ever (`FENCED`).
- An epoch of a claim, `CLAIMED` or above, makes no session: if it did, a batch that is sent after
  its session was forgotten would begin a session without the label that later claims need.
- No two claims of a producer get the same epoch: it is at most the index of the claim's record.
- Memory is bounded: at most `sessions_max` sessions, the one idle longest goes first, and
  `RUNS_MAX` runs a session. Eviction depends on record times only, so replicas agree.

Sources: Raft thesis §6.3 (client sessions); Kafka's idempotent producer (KIP-98).
"""

from bisect import bisect_right
from typing import Any, NamedTuple

import msgspec

from raftmq.errors import Reason
from raftmq.results import Refused

RUNS_MAX = 64
"""Runs kept per session; a client keeps no more batches in flight to one queue."""
RESERVED = 1 << 63
"""Producers from here on are the brokers' own."""
CLAIMED = 1 << 31
"""Epochs from here on are given by claims."""


class ClaimSessions(msgspec.Struct, frozen=True, array_like=True, tag="claim_sessions"):
    """Take a producer's sessions over from an earlier attempt."""

    producer: int
    """The producer's id, 1 to 2^63 - 1."""
    queues: list[int]
    """Numbers of queues, each once."""
    label: int
    """The label of the work, 1 to 2^63 - 1; a producer's label never goes back."""
    part: int = 0
    """The part of the label's work that begins, from 1; 0: the work is not cut."""
    parts: int = 0
    """How many parts the label's work has; 0: not known."""


class ClaimedSession(NamedTuple):
    """The result of a claim for one queue."""

    epoch: int
    """The claim's epoch, which batches must carry."""
    next_sequence: int
    """How many messages of this label are stored."""
    origin: int
    """Where the first of these messages went; -1: none is stored."""
    part: int = 0
    """The highest part of the label that was begun, by this claim or an earlier one."""


class _Session:
    """The session of one producer on one queue."""

    __slots__ = (
        "bases",
        "epoch",
        "firsts",
        "label",
        "next_sequence",
        "origin",
        "part",
        "parts",
        "timestamp",
    )

    def __init__(self, epoch: int, next_sequence: int, timestamp: int, label: int = 0) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.timestamp = timestamp
        self.label = label
        """The label of the last claim; 0: the session was never claimed."""
        self.origin = -1
        """Where sequence 0 went, never forgotten, unlike the runs; -1: nothing is stored."""
        self.part = 0
        """The highest part of the label that was begun; 0: none was named."""
        self.parts = 0
        """How many parts the label has; 0: no claim said so."""
        self.firsts: list[int] = []
        self.bases: list[int] = []

    def extend(self, first: int, base: int) -> None:
        """Remember that sequence `first` went to offset `base`; start a run if out of step."""
        if first == 0:
            self.origin = base
        if self.firsts and first - self.firsts[-1] == base - self.bases[-1]:
            return
        # `base_of` finds a run by bisection.
        assert not self.firsts or first > self.firsts[-1], "a sequence is stored a second time"
        assert len(self.firsts) == len(self.bases), "a run without its offset"
        self.firsts.append(first)
        self.bases.append(base)
        if len(self.firsts) > RUNS_MAX:
            del self.firsts[0], self.bases[0]

    def base_of(self, first: int) -> int | None:
        """Where sequence `first` went; None if that is forgotten."""
        at = bisect_right(self.firsts, first) - 1
        if at < 0:
            return None
        return self.bases[at] + first - self.firsts[at]


class Producers:
    """All sessions of a partition group, the one idle longest first."""

    def __init__(self, sessions_max: int) -> None:
        assert sessions_max > 0
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[int, int], _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def admit(
        self, *, producer: int, queue: int, epoch: int, first: int, count: int, end: int, now: int
    ) -> int | Refused | None:
        """Decide on a batch, and remember it at offset `end` if it is new.

        Returns:
            None for a new batch; for a repeat the offset that its first message got; else why not.
        """
        key = (producer, queue)
        session = self._sessions.get(key)
        if session is None or epoch > session.epoch:
            if epoch >= CLAIMED:
                return _forgotten(producer, queue)
            if first != 0:
                return _unknown(producer, queue, first)
            session = _Session(epoch, 0, now)
        elif epoch < session.epoch:
            message = f"producer {producer} has a newer epoch {session.epoch}; {epoch} is fenced"
            return Refused(Reason.FENCED, message)
        elif first != session.next_sequence:
            return self._repeat_or_gap(session, first=first, count=count)
        assert first == session.next_sequence, "a batch is stored out of its producer's order"
        session.extend(first, end)
        session.next_sequence = first + count
        session.timestamp = now
        self._keep(key, session)
        return None

    def claim(
        self, command: ClaimSessions, *, index: int, now: int
    ) -> list[ClaimedSession] | Refused:
        """Take over the sessions of a producer; `index` is that of the command's record.

        Returns:
            One for each queue of the command, in its order; or why not, and then nothing changed.
        """
        refusal = self._claim_refusal(command)
        if refusal is not None:
            return refusal
        claimed = []
        for queue in command.queues:
            key = (command.producer, queue)
            session = self._sessions.get(key)
            epoch = CLAIMED | index % CLAIMED
            if session is not None and session.label:
                epoch = CLAIMED | (session.epoch + 1) % CLAIMED
            if session is None or session.label < command.label:
                session = _Session(epoch, 0, now, command.label)
            session.epoch, session.timestamp = epoch, now
            session.part = max(session.part, command.part)
            session.parts = session.parts or command.parts
            self._keep(key, session)
            claimed.append(
                ClaimedSession(epoch, session.next_sequence, session.origin, session.part)
            )
        return claimed

    def _claim_refusal(self, command: ClaimSessions) -> Refused | None:
        producer, queues, label = command.producer, command.queues, command.label
        if not 0 < producer < RESERVED or not 0 < label < RESERVED:
            return Refused(Reason.BAD_ARGUMENT, "a producer's id and a label are 1 to 2^63 - 1")
        if not 0 < len(queues) <= self._sessions_max or len(set(queues)) < len(queues):
            message = f"a claim names 1 to {self._sessions_max} queues, each once"
            return Refused(Reason.BAD_ARGUMENT, message)
        known = [self._sessions.get((producer, queue)) for queue in queues]
        highest = max((session.label for session in known if session is not None), default=0)
        if label < highest:
            message = f"producer {producer} has reached label {highest}; label {label} is over"
            return Refused(Reason.FENCED, message)
        same = [session for session in known if session is not None and session.label == label]
        return _other_parts(command, same)

    def _keep(self, key: tuple[int, int], session: _Session) -> None:
        # The newest goes to the end of the dict: its order is the order of eviction.
        self._sessions.pop(key, None)
        self._sessions[key] = session
        if len(self._sessions) > self._sessions_max:
            del self._sessions[next(iter(self._sessions))]

    def is_new(self, *, producer: int, queue: int, epoch: int, first: int) -> bool:
        """Would `admit` take this batch as a new one?"""
        session = self._sessions.get((producer, queue))
        if session is None or epoch > session.epoch:
            return first == 0 and epoch < CLAIMED
        return epoch == session.epoch and first == session.next_sequence

    def _repeat_or_gap(self, session: _Session, *, first: int, count: int) -> int | Refused:
        expected = session.next_sequence
        assert first != expected, "the next batch in order is taken for a repeat"
        if first > expected:
            message = f"sequence {first} came while {expected} is expected: resend from there"
            return Refused(Reason.OUT_OF_ORDER, message)
        if first + count > expected:
            message = f"sequences {first}..{first + count - 1} overlap the stored ones in part"
            return Refused(Reason.OUT_OF_ORDER, message)
        base = session.base_of(first)
        if base is None:
            return Refused(Reason.DUPLICATE, f"sequence {first} was stored long ago")
        if session.base_of(first + count - 1) != base + count - 1:
            message = f"sequences {first}..{first + count - 1} were stored, but not as one batch"
            return Refused(Reason.OUT_OF_ORDER, message)
        return base

    def forget_before(self, timestamp: int) -> None:
        """Drop the sessions that were last used before `timestamp` (milliseconds)."""
        while self._sessions:
            key = next(iter(self._sessions))
            if self._sessions[key].timestamp >= timestamp:
                return
            del self._sessions[key]

    def forget(self, producer: int, queues: set[int]) -> None:
        """A producer sends nothing more to these queues."""
        for queue in sorted(queues):
            self._sessions.pop((producer, queue), None)

    def drop_queues(self, queues: set[int]) -> None:
        """Forget all sessions of these queues."""
        for key in [key for key in self._sessions if key[1] in queues]:
            del self._sessions[key]

    def dump(self) -> list[list[Any]]:
        """The sessions as plain values, in order of eviction."""
        rows = []
        for (producer, queue), s in self._sessions.items():
            row = [producer, queue, s.epoch, s.next_sequence, s.timestamp, s.firsts, s.bases]
            rows.append([*row, s.label, s.origin, s.part, s.parts] if s.label else row)
        return rows

    def load(self, rows: list[list[Any]]) -> None:
        """The reverse of `dump`."""
        self._sessions = {}
        for producer, queue, epoch, next_sequence, timestamp, firsts, bases, *claimed in rows:
            # State version 8 had claims without parts: missing values are as in a new session.
            label, origin, part, parts = claimed + [0, -1, 0, 0][len(claimed) :]
            session = _Session(epoch, next_sequence, timestamp, label)
            session.firsts, session.bases, session.origin = list(firsts), list(bases), origin
            session.part, session.parts = part, parts
            self._sessions[producer, queue] = session


def _other_parts(command: ClaimSessions, sessions: list[_Session]) -> Refused | None:
    """Refuse a claim whose parts contradict those of earlier claims of the same label."""
    if not 0 <= command.part < RESERVED or not 0 <= command.parts < RESERVED:
        return Refused(Reason.BAD_ARGUMENT, "a part and a number of parts are 0 to 2^63 - 1")
    part = max((session.part for session in sessions), default=0)
    parts = max((session.parts for session in sessions), default=0)
    if command.parts and parts and command.parts != parts:
        message = f"the work was begun in {parts} parts, and comes in {command.parts} now"
        return Refused(Reason.OTHER_PARTS, message)
    known = command.parts or parts
    if known and max(command.part, part) > known:
        message = f"part {max(command.part, part)} was begun of a work that has {known} parts"
        return Refused(Reason.OTHER_PARTS, message)
    return None


def _unknown(producer: int, queue: int, first: int) -> Refused:
    message = (
        f"producer {producer} is not known on queue {queue}, yet its sequence starts at {first}: "
        "a new producer starts at 0"
    )
    return Refused(Reason.UNKNOWN_PRODUCER, message)


def _forgotten(producer: int, queue: int) -> Refused:
    message = f"producer {producer} no longer has a claimed session on queue {queue}: claim again"
    return Refused(Reason.UNKNOWN_PRODUCER, message)
