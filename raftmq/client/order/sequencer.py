"""The sequencer: it numbers the messages of one stream, over all queues.

The stamp is two properties, so it goes wherever a message goes: through `send`, `send_many`, delays
and transactions, to any topic, and in the code of any other client.

| property | kind | meaning |
|---|---|---|
| `stream` | text | the stream's name |
| `stream_number` | integer | the message's number in the stream, from 0, without gaps |

Left out: a number that is drawn and never sent leaves a gap. The sequencer cannot take the number
back, as later ones may be on their way.

Sources: the Message Sequence of Hohpe and Woolf, Enterprise Integration Patterns; `group-id` and
`group-sequence` of AMQP 1.0.
"""

from collections.abc import Mapping
from secrets import token_hex
from threading import Lock

from raftmq.batch import Value
from raftmq.client.arguments import require, require_dict, require_text, require_whole

STREAM = "stream"
"""The property with the stream's name."""
NUMBER = "stream_number"
"""The property with the message's number in the stream."""
NUMBER_MAX = 2**63 - 1
"""The highest number: properties have 64 bits."""


class Sequencer:
    """Numbers the messages of a stream, so that a `Resequencer` can restore their order.

    Stamp each message once: `await producer.send(body, props=sequencer.stamp())`. After
    `Unavailable` or `OutcomeUnknown` send the message again with the same stamp: the receiver drops
    a repeat. A message that is given up for good leaves a gap, which the receiver reports.

    A stream has one sequencer at a time. Threads may share it.

    Args:
        stream: the stream's name. None: a random name, so each start of a program is a new stream.
        first: the number of the first stamp. A program that goes on with a stream after a restart
            has stored the next number; a lower one would make new messages look like repeats.

    Raises:
        Rejected: `BAD_ARGUMENT`, the name is empty, or the number is out of its range.
    """

    def __init__(self, stream: str | None = None, *, first: int = 0) -> None:
        if stream is not None:
            require_text(stream, "stream")
            require(stream != "", "a stream has a name, or is None")
        require_whole(first, "first")
        require(0 <= first <= NUMBER_MAX, f"first is 0 to {NUMBER_MAX}, not {first}")
        self._lock = Lock()
        self._next = first
        self.stream = token_hex(8) if stream is None else stream
        """The stream's name."""

    @property
    def next(self) -> int:
        """The number of the next stamp."""
        return self._next

    def stamp(self, props: Mapping[str, Value | None] | None = None) -> dict[str, Value | None]:
        """The properties of the next message: these, the stream's name, and the next number.

        Raises:
            Rejected: `BAD_ARGUMENT`, `props` has a `stream` or `stream_number` already.
        """
        require_dict(props, "props")
        for name in (STREAM, NUMBER):
            require(name not in (props or {}), f"the stamp has the property {name!r}: rename yours")
        with self._lock:
            number = self._next
            self._next = number + 1
        return {**(props or {}), STREAM: self.stream, NUMBER: number}


def stamp_of(props: Mapping[str, Value]) -> tuple[str, int] | None:
    """Stream and number of a message with these properties; None: it has no stamp."""
    stream, number = props.get(STREAM), props.get(NUMBER)
    if not isinstance(stream, str) or type(number) is not int or number < 0:
        return None
    return stream, number
