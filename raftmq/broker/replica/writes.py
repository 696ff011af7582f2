"""The storage messages of one group that are written together, and the order of the writing.

A run of messages becomes one append. A snapshot is installed by itself, after a sync: it takes the
place of the log, and a crash must find either the one or the other. The caller syncs in the end,
and answers only then.

This is the writing that ships: the broker's disk thread and the core simulator both call it.
"""

from dataclasses import dataclass, field

from raftmq.consensus import Message
from raftmq.log.faults import DiskFull
from raftmq.log.segment import HardState
from raftmq.log.store import LogStore

from .group import Group


@dataclass(slots=True)
class Write:
    """The writes of one group in a pass."""

    group: Group
    messages: list[Message] = field(default_factory=list[Message])
    """The storage messages, in order."""
    size: int = 0
    """Bytes of their records."""
    sent_size: int = 0
    """Bytes of those that a leader sent."""
    written: int = 0
    """Messages written so far."""
    is_installed: bool = False
    """True if the next message's snapshot is installed, and its records are not written yet."""
    is_awaited: bool = False
    """True if an answer waits for the write."""
    full: DiskFull | None = None
    """Set by the pass if the disk was full: the messages from `written` on are not written."""

    @property
    def is_due(self) -> bool:
        """True if the write must not wait for the next one. A message without answers only moves
        the commit index: after a crash, the leader sends the index again. The commit index of a
        change of members cannot wait, as it may be needed to have a leader."""
        return self.is_awaited or self.group.owes_mark

    def add(self, message: Message) -> None:
        """Put a message after the others."""
        self.messages.append(message)
        size = sum(len(record.encoded) for record in message.entries)
        self.size += size
        if not self.group.is_leader:
            self.sent_size += size
        self.is_awaited = self.is_awaited or bool(message.responses)

    def perform(self) -> None:
        """Write what is not written yet: the records together, each snapshot by itself.

        A message may carry a snapshot and records after it, when the leader's first append came
        together with the snapshot.

        Raises:
            DiskFull: the messages from `written` on are not written; call it again.
        """
        store = self.group.store
        while self.written < len(self.messages):
            run = self.messages[self.written :]
            snapshots = (n for n, m in enumerate(run) if m.snapshot is not None)
            # A snapshot installed by the last round is passed over: only its records are due.
            at = next((n for n in snapshots if n or not self.is_installed), len(run))
            records = [record for message in run[:at] for record in message.entries]
            if at:
                store.append(records, _hard_state(run[:at], store))
                self.written += at
                self.is_installed = False
            if at < len(run):
                store.sync()
                _install(store, run[at])
                self.is_installed = True


def _install(store: LogStore, message: Message) -> None:
    """Put a snapshot in the place of the log."""
    assert message.snapshot is not None
    index = message.snapshot.meta.index
    term, vote, commit = _hard_state([message], store)
    # The message's own records are not written yet, so the stored commit must not cover them.
    store.install_snapshot(index, HardState(term, vote, min(commit, index)))


def _hard_state(messages: list[Message], store: LogStore) -> HardState:
    """The last hard state among the messages; the stored one if there is none."""
    for message in reversed(messages):
        if message.term:
            return HardState(message.term, message.vote, message.commit)
    return store.hard_state
