"""The shell's next work, and how consensus learns that it is done.

In synchronous mode the shell does everything in a `Ready` in order and calls `advance()`. In
asynchronous mode the same work comes as two messages to local threads, each with the responses to
deliver when it is done:

    1->AppendThread STORAGE_APPEND  term vote commit  entries  snapshot   responses: [
        1->2            APPEND_RESPONSE           a promise that needs our disk
        1->1            APPEND_RESPONSE           our own vote for our own records
        AppendThread->1 STORAGE_APPEND_RESPONSE   "durable up to (index, term)"
    ]
    1->ApplyThread  STORAGE_APPLY   entries   responses: [ STORAGE_APPLY_RESPONSE ]

The last response of an append names the *last* index and term of the log at that moment, and is
ignored if the term has changed when it returns. Otherwise this could go wrong: records 5..6 of
term 1 are being written, are superseded by others of term 2, and those again by 5..6 of term 1
from the old leader. The first write's response would match, while the second, still queued, is
about to overwrite on disk what we then believe to be stable (an ABA problem). As a response may be
ignored, every append sent while anything is unstable carries one, not only those with records. So
does each append with a new term or vote, and the response names them: see `patience`.

Invariants:
- A record, snapshot or message is handed out once.
- Vote and acknowledgement messages are never in `Ready.messages` in asynchronous mode.

Sources: etcd-io/raft's Ready and asynchronous storage writes; thesis §3.8.
"""

import msgspec

from raftmq.consensus.core import Core
from raftmq.consensus.messages import APPEND_THREAD, APPLY_THREAD, Message, MessageKind
from raftmq.consensus.storage import NotInMemory
from raftmq.consensus.types import NONE, Fetch, HardState, ReadState, Snapshot, SoftState
from raftmq.log.record import Record

# Bound once: looking a member up in its enum class costs 0.1 µs, and these are in the hot path.
_STORAGE_APPEND = MessageKind.STORAGE_APPEND
_STORAGE_APPEND_RESPONSE = MessageKind.STORAGE_APPEND_RESPONSE
_STORAGE_APPLY = MessageKind.STORAGE_APPLY
_STORAGE_APPLY_RESPONSE = MessageKind.STORAGE_APPLY_RESPONSE


class Ready(msgspec.Struct, frozen=True):
    """Work for the shell. Empty fields ask for nothing.

    In asynchronous mode `hard_state`, `entries`, `snapshot` and `committed` are there for
    information only: the same work is in `messages`, addressed to the local threads.
    """

    soft_state: SoftState | None = None
    """New leader or role, if either changed. Need not be stored."""
    hard_state: HardState | None = None
    """To be stored, if it changed."""
    entries: list[Record] = []
    """To be appended to the log; the first may supersede stored records from its index on."""
    snapshot: Snapshot | None = None
    """To replace log and machine. Never together with `entries` that it covers."""
    committed: list[Record] = []
    """To be applied, in order, after the snapshot."""
    messages: list[Message] = []
    """To be sent. In synchronous mode: after entries, hard state and snapshot are durable."""
    read_states: list[ReadState] = []
    """Granted reads."""
    fetches: list[Fetch] = []
    """Records to be read from disk; answer each with `Raft.entries_fetched`."""
    must_sync: bool = False
    """Whether the write must reach the disk itself; else the hard state may lag (commit only)."""


class ReadyMaker:
    """Collects a node's outboxes into `Ready` values. It is state: what was handed out last."""

    __slots__ = ("_allow_unstable", "_async", "_commit", "_core", "_leader", "_on_advance", "_role",
                 "_term", "_vote")  # fmt: skip

    def __init__(self, core: Core, *, async_storage_writes: bool) -> None:
        self._core = core
        self._async = async_storage_writes
        # A synchronous shell persists what it is about to apply in the same turn.
        self._allow_unstable = not async_storage_writes
        self._term, self._vote, self._commit = core.hard_state
        self._leader, self._role = core.leader, core.role
        self._on_advance: list[Message] = []

    def has_ready(self) -> bool:
        """Whether `make` would return any work. Cheap; changes nothing."""
        core = self._core
        if core.messages or core.after_append or core.read_states or core.fetches:
            return True
        if core.leader != self._leader or core.role is not self._role:
            return True
        log = core.log
        if core.term != self._term or core.vote != self._vote or log.committed != self._commit:
            return True
        unstable = log.unstable
        if unstable.has_new_records or unstable.new_snapshot is not None:
            return True
        return log.has_committed(allow_unstable=self._allow_unstable)

    def make(self) -> Ready:
        """Hand out all present work, and forget it here."""
        core, log = self._core, self._core.log
        assert not self._on_advance, "ready() twice without advance()"
        hard_state = must_sync = None
        if core.term != self._term or core.vote != self._vote:
            assert core.term >= self._term, f"term {core.term} after {self._term} was handed out"
            must_sync = True
        if must_sync or log.committed != self._commit:
            hard_state = HardState(core.term, core.vote, log.committed)
            self._term, self._vote, self._commit = hard_state
        soft_state = None
        if core.leader != self._leader or core.role is not self._role:
            self._leader, self._role = core.leader, core.role
            soft_state = SoftState(core.leader, core.role)

        snapshot = log.unstable.new_snapshot
        entries = log.unstable.new_records() if log.unstable.has_new_records else []
        if snapshot is not None and entries:
            assert entries[0].index == snapshot.meta.index + 1, "records that the snapshot covers"
        committed = self._take_committed()
        messages, core.messages = core.messages, []
        after_append, core.after_append = core.after_append, []
        stored = None
        is_vote_new = must_sync and core.config.waits_for_votes
        if log.unstable.records or snapshot is not None or is_vote_new:
            stored = self._stored_response(snapshot)
        applied = self._applied_response(committed) if committed else None
        if self._async:
            if entries or hard_state or snapshot is not None or after_append:
                if stored is not None:
                    after_append.append(stored)
                messages.append(self._append_message(hard_state, entries, snapshot, after_append))
            if applied is not None:
                messages.append(self._apply_message(committed, applied))
        else:
            self._plan_advance(messages, after_append, stored, applied)

        log.unstable.accept()
        read_states, core.read_states = core.read_states, []
        fetches, core.fetches = core.fetches, []
        return Ready(
            soft_state=soft_state,
            hard_state=hard_state,
            entries=entries,
            snapshot=snapshot,
            committed=committed,
            messages=messages,
            read_states=read_states,
            fetches=fetches,
            must_sync=bool(must_sync or entries),
        )

    def take_advance(self) -> list[Message]:
        """Synchronous mode: the node's messages to itself now that the last work is done."""
        assert not self._async, "with asynchronous storage writes, responses replace advance()"
        steps, self._on_advance = self._on_advance, []
        return steps

    def _take_committed(self) -> list[Record]:
        core, log = self._core, self._core.log
        try:
            return log.take_committed(allow_unstable=self._allow_unstable)
        except NotInMemory:
            log.is_applying_fetched = False
            core.fetches.append(Fetch(core.id, log.applying + 1, log.committed + 1))
            return []

    def _plan_advance(
        self,
        messages: list[Message],
        after_append: list[Message],
        stored: Message | None,
        applied: Message | None,
    ) -> None:
        own = self._core.id
        for message in after_append:
            (self._on_advance if message.to == own else messages).append(message)
        if stored is not None:
            self._on_advance.append(stored)
        if applied is not None:
            self._on_advance.append(applied)

    def _stored_response(self, snapshot: Snapshot | None) -> Message:
        core, log = self._core, self._core.log
        has_records = bool(log.unstable.records)
        return Message(
            _STORAGE_APPEND_RESPONSE,
            core.id,
            sender=APPEND_THREAD,
            term=core.term,
            vote=core.vote if core.config.waits_for_votes else NONE,
            index=log.last_index if has_records else 0,
            log_term=log.last_term if has_records else 0,
            snapshot=snapshot,
        )

    def _applied_response(self, committed: list[Record]) -> Message:
        return Message(
            _STORAGE_APPLY_RESPONSE,
            self._core.id,
            sender=APPLY_THREAD,
            entries=committed,
        )

    def _append_message(
        self,
        hard_state: HardState | None,
        entries: list[Record],
        snapshot: Snapshot | None,
        responses: list[Message],
    ) -> Message:
        term, vote, commit = hard_state or HardState()
        return Message(
            _STORAGE_APPEND,
            APPEND_THREAD,
            sender=self._core.id,
            term=term,
            vote=vote,
            commit=commit,
            entries=entries,
            snapshot=snapshot,
            responses=responses,
        )

    def _apply_message(self, committed: list[Record], applied: Message) -> Message:
        return Message(
            _STORAGE_APPLY,
            APPLY_THREAD,
            sender=self._core.id,
            entries=committed,
            responses=(applied,),
        )
