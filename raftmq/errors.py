"""The exceptions a user of raftmq may catch, and what each one allows.

They are in `raftmq.errors`, as `from raftmq.errors import Rejected`; `SomeUnsent` is in
`raftmq.client`.

| exception | did it happen? | what to do |
|---|---|---|
| `Unavailable` | no | try again later |
| `OutcomeUnknown` | perhaps | the same idempotent call again is safe |
| `Rejected` | no, and never will | change the call; `reason` says what is wrong |
| `SomeUnsent` | of some messages of a `send_many` | send those at `sent.failed` again |
| `ProtocolError` | no | the two ends do not speak the same protocol |
| `CorruptRecord` | - | bytes were damaged; the message says where |
| `UnreadableBatch` | - | a stored batch cannot be read: `seek` to `next_offset` |
| `MissingMessages` | - | numbers of a stream did not come: go on without them |
| `Inconsistent` | - | a checked queue or cluster broke a promise: keep the folders, report it |
| `FilterSyntaxError` | no, and never will | a `Rejected`: correct the text as the message shows |
| `WrongType` | no, and never will | a `Rejected` and a `TypeError`: give what the message names |

Cores do not raise these (apart from `CorruptRecord`, which codecs raise): a core's refusal is a
value, part of the replicated result.
"""

from enum import Enum

__all__ = [
    "CorruptRecord",
    "FilterSyntaxError",
    "Inconsistent",
    "MissingMessages",
    "OutcomeUnknown",
    "ProtocolError",
    "RaftmqError",
    "Reason",
    "Rejected",
    "Unavailable",
    "UnreadableBatch",
    "WrongType",
]


_SHOWN_CHARACTERS = 60
"""Characters of a filter's text that are shown before and after the wrong place."""


class RaftmqError(Exception):
    """The base of all exceptions that raftmq raises to its users."""


class Unavailable(RaftmqError):
    """Nothing happened: no leader, no connection, or the broker is busy. A retry is safe."""


class OutcomeUnknown(RaftmqError):
    """The call may or may not have taken effect, or only a part of it has: then the text names that
    part. The same idempotent call again is safe."""


class ProtocolError(RaftmqError):
    """A frame or a message broke the rules of the wire; the connection is closed."""


class CorruptRecord(RaftmqError):
    """Bytes that should hold a record do not check out.

    `position` is the byte offset of the damaged record in the bytes that were read.
    """

    def __init__(self, message: str, *, position: int) -> None:
        super().__init__(f"{message} (at byte {position})")
        self.why = message
        """The problem, without the position."""
        self.position = position


class UnreadableBatch(CorruptRecord):
    """A batch of a queue cannot be read, and will not get better: a consumer must pass over it.

    Brokers refuse such batches, so an older broker stored this one, or it was damaged on its way
    here; a `seek` to `offset` reads the batch again, a `seek` to `next_offset` goes on after it.
    """

    def __init__(
        self, error: CorruptRecord, *, topic: str, queue: int, offset: int, next_offset: int
    ) -> None:
        super().__init__(
            f"queue {queue} of topic {topic!r}, batch at offset {offset}: {error.why}; "
            f"to go on after it: seek(queue={queue}, offset={next_offset})",
            position=error.position,
        )
        self.topic = topic
        """The topic's name."""
        self.queue = queue
        """The queue within the topic."""
        self.offset = offset
        """The first offset of the batch."""
        self.next_offset = next_offset
        """The first offset after the batch."""


class MissingMessages(RaftmqError):
    """Numbers of a stream did not come in time: see `raftmq.client.Resequencer`, which goes on
    after them. A message with one of the numbers that comes later is dropped.

    The sender gave the messages up, or they are late, trimmed, filtered out, or went to another
    consumer of the group.
    """

    def __init__(self, why: str, *, stream: str, first: int, last: int) -> None:
        assert 0 <= first <= last, (first, last)
        numbers = f"number {first}" if first == last else f"numbers {first} to {last}"
        super().__init__(f"{numbers} of stream {stream!r} did not come {why}")
        self.stream = stream
        """The stream's name."""
        self.first = first
        """The first missing number."""
        self.last = last
        """The last missing number."""


class Inconsistent(RaftmqError):
    """A checked queue or cluster broke a promise; see `Client.check` and `Embedded.check`.

    The text says which promise, and what proves the breach. Keep the data folders: they are needed
    to find the cause.
    """

    def __init__(self, explanation: str, *, anomalies: tuple[str, ...]) -> None:
        super().__init__(explanation)
        self.anomalies = anomalies
        """The names of the anomalies found; `docs/chaos` explains them."""


class Reason(Enum):
    """Why a call was rejected; the value travels on the wire."""

    UNKNOWN_TOPIC = "unknown_topic"
    """No topic of that name or id exists."""
    TOPIC_EXISTS = "topic_exists"
    """A topic of that name exists with other settings."""
    BAD_NAME = "bad_name"
    """A name breaks the rules: 1 to 127 of `A-Z a-z 0-9 . _ -`, not starting with a dot or `-`."""
    BAD_ARGUMENT = "bad_argument"
    """A number or option is out of its range."""
    TOO_LARGE = "too_large"
    """A message, batch or frame is over its limit."""
    OUT_OF_ORDER = "out_of_order"
    """A producer's batch arrived with a gap before it; the earlier ones must be sent first."""
    UNKNOWN_PRODUCER = "unknown_producer"
    """The broker has no memory of this producer, yet its sequence does not start at zero."""
    DUPLICATE = "duplicate"
    """The batch was stored earlier, and its offset is no longer remembered."""
    FENCED = "fenced"
    """A newer epoch of the same identity exists; this one may no longer write."""
    OTHER_PARTS = "other_parts"
    """The work was begun in another number of parts, so its messages lie in other parts."""
    OFFSET_OUT_OF_RANGE = "offset_out_of_range"
    """The offset lies before the earliest kept message or after the end."""
    UNKNOWN_GROUP = "unknown_group"
    """No consumer group of that name exists."""
    GROUP_MODE = "group_mode"
    """The consumer group is of another mode: pop, ordered, broadcast or pull."""
    UNKNOWN_NODE = "unknown_node"
    """No node of that id belongs to the cluster."""
    WRONG_CLUSTER = "wrong_cluster"
    """The two ends belong to different clusters."""
    CHANGED_MEANWHILE = "changed_meanwhile"
    """Another change came between: look again, and repeat the call with what is there now."""
    OLD_SOFTWARE = "old_software"
    """The cluster is at a feature level that a node does not know: upgrade the node. Or the request
    needs a level that not all nodes know yet."""
    TLS = "tls"
    """The two ends do not agree on TLS: one of them does not speak it, or does not accept the
    other's certificate."""
    UNAUTHENTICATED = "unauthenticated"
    """The cluster requires a login, and the client gave none, or one that is not valid."""
    DENIED = "denied"
    """The rules of access do not allow the user to do this, or nodes alone may do it."""
    OVER_QUOTA = "over_quota"
    """The user would own more topics, queues or consumer groups than its quota allows."""
    UNKNOWN_USER = "unknown_user"
    """No user of that name exists."""
    CORRUPT_BATCH = "corrupt_batch"
    """The batch's checksum does not match its bytes, or its columns do not fit each other: no
    consumer could read it."""
    BAD_FILTER = "bad_filter"
    """The text of a filter cannot be read; the message shows where and what would be right."""
    FELL_DUE = "fell_due"
    """The delayed message's time has come: it is delivered, and can no longer be cancelled."""
    TOO_MANY_DELAYED = "too_many_delayed"
    """The partition group holds as many delayed messages as it may: send this one later."""
    UNKNOWN_TRANSACTION = "unknown_transaction"
    """No transaction of that number is open: it never existed, or ended long ago."""
    TRANSACTION_ENDED = "transaction_ended"
    """The transaction was committed or rolled back before, and the first outcome holds."""
    TOO_MANY_TRANSACTIONS = "too_many_transactions"
    """The partition group has as many open transactions as it may: end some of them."""
    CHANGE_IN_PROGRESS = "change_in_progress"
    """Another membership change of the same group is not finished yet."""


class Rejected(RaftmqError):
    """The call was refused and will be refused again unless it is changed."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WrongType(Rejected, TypeError):
    """An argument of a type that the call does not take: `BAD_ARGUMENT`, and a `TypeError`, too.

    Nothing was sent. The message names the argument and what would be right.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Reason.BAD_ARGUMENT, message)


class BadRow(Rejected):
    """A row of Arrow that cannot be sent: `BAD_ARGUMENT` or `TOO_LARGE`. None was sent with it."""

    def __init__(self, reason: Reason, row: int, why: str) -> None:
        super().__init__(reason, f"row {row} cannot be sent: {why}")
        self.row = row
        """The row's place among the given rows, from 0."""
        self.why = why
        """The fault of the row, in words."""


class FilterSyntaxError(Rejected):
    """A filter's text cannot be read. Nothing was subscribed; correct the text.

    The message is three lines: what is wrong, the text around the place, and a caret below it.

    >>> from raftmq.filters import compile
    >>> try:
    ...     compile("city CONTAIN 'x'")
    ... except FilterSyntaxError as error:
    ...     print(error)
    CONTAIN is no operator; did you mean CONTAINS? (at character 6)
      city CONTAIN 'x'
           ^^^^^^^
    """

    def __init__(self, problem: str, *, text: str, position: int, length: int = 1) -> None:
        assert 0 <= position <= len(text), position
        self.problem = problem
        """The problem, one line."""
        self.text = text
        """The whole filter."""
        self.position = position
        """Characters before the place, from 0; the length of the text if it ends too early."""
        self.length = max(1, length)
        """The number of wrong characters, at least 1."""
        message = f"{problem} (at character {position + 1})\n{self._marked()}"
        super().__init__(Reason.BAD_FILTER, message)

    def _marked(self) -> str:
        start = max(0, self.position - _SHOWN_CHARACTERS)
        end = self.position + _SHOWN_CHARACTERS
        before = ("..." if start else "") + self.text[start : self.position]
        after = self.text[self.position : end] + ("..." if end < len(self.text) else "")
        carets = "^" * min(self.length, max(1, len(after)))
        return f"  {_one_line(before + after)}\n  {' ' * len(before)}{carets}"


def _one_line(text: str) -> str:
    """Each control character as one space, so that the carets stand where they should."""
    return "".join(max(character, " ") for character in text)
