"""A window: what a group knows of the messages that come next in a queue.

A group with a filter, or ordered by key, cannot tell from an offset whether a message may go out.
The leader reads the batches and tells all replicas by a record: it *feeds* the window. At the end
of a queue the machine feeds from the batch that it places, without a record.

    offset     next ................. known ............. end
    window     | bits: does it match? |  not known yet     |
               | keys: with whom does |
               | it share its turn?   |

Invariants:
- Each message before `known` was fed once, in order, without a gap.
- A window never holds more than `WINDOW_MAX` messages. While the windows of a group together hold
  `FED_MAX`, each is fed up to `CROWDED_MAX` only: a group of ten thousand queues with a backlog
  must not fill the memory of all replicas.

Left out: filters. The window takes the leader's word for each message; `subscriptions` has which
filter holds for which batch.
"""

from typing import Any

from .pieces import KEY_BYTES

WINDOW_MAX = 65_536
"""Messages that a window holds."""
WINDOW_MIN = 16_384
"""A window with fewer messages wants to be fed."""
FED_MAX = 1 << 20
"""Messages that the windows of a group hold together; only the last one fed may go beyond."""
CROWDED_MAX = 1024
"""Messages that a window is fed up to while the group's windows hold `FED_MAX`."""
CROWDED_MIN = 256
"""A window with fewer messages wants to be fed even then."""


class Fill:
    """The number of messages in all windows of a group."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages = 0
        """Messages in the windows."""

    @property
    def is_crowded(self) -> bool:
        """Whether each window is fed up to `CROWDED_MAX` only."""
        return self.messages >= FED_MAX


class Window:
    """Matches and keys of messages, from the backlog's next one on."""

    __slots__ = ("_fill", "keys", "mask", "width")

    def __init__(self, fill: Fill, *, is_keyed: bool) -> None:
        self._fill = fill
        self.width = 0
        """How many messages the window describes."""
        self.mask = 0
        """Bit n: the n-th of these messages matches, from 0."""
        self.keys: bytearray | None = bytearray() if is_keyed else None
        """The hash of each message's key, four bytes little-endian; 0: the message has none."""

    @property
    def is_low(self) -> bool:
        """Whether the window wants to be fed."""
        return self.width < (CROWDED_MIN if self._fill.is_crowded else WINDOW_MIN)

    def feed(self, count: int, mask: int | None, keys: bytes | None) -> int:
        """Add the next messages, as far as there is room; how many were taken in."""
        # A record may hold any bytes: what does not fit changes nothing, on each replica alike.
        if keys and len(keys) != count * KEY_BYTES:
            return 0
        width_max = CROWDED_MAX if self._fill.is_crowded else WINDOW_MAX
        count = min(count, width_max - self.width)
        if count <= 0:
            return 0
        every = (1 << count) - 1
        self.mask |= (every if mask is None else mask & every) << self.width
        self.width += count
        self._fill.messages += count
        if self.keys is not None:
            self.keys += (keys or b"")[: count * KEY_BYTES] or bytes(count * KEY_BYTES)
            assert len(self.keys) == self.width * KEY_BYTES, "keys and matches out of step"
        assert self.mask.bit_length() <= self.width <= WINDOW_MAX, "matches beyond the window"
        return count

    def cut(self, width: int) -> int:
        """Forget the first `width` messages; which of them matched, as bits."""
        assert width <= self.width, f"{width} messages are cut of {self.width} that are known"
        bits = self.mask & (1 << width) - 1
        self.mask >>= width
        self.width -= width
        self._fill.messages -= width
        assert self._fill.messages >= self.width, "the group's windows hold less than this one"
        if self.keys is not None:
            del self.keys[: width * KEY_BYTES]
        return bits

    def skip(self) -> int:
        """Forget messages at the beginning that do not match; how many were forgotten."""
        skipped = (self.mask & -self.mask).bit_length() - 1 if self.mask else self.width
        if skipped:
            self.cut(skipped)
        return skipped

    def dump(self) -> list[Any]:
        """The window as plain values."""
        return [self.width, self.mask, None if self.keys is None else bytes(self.keys)]

    @classmethod
    def load(cls, values: list[Any], fill: Fill) -> "Window":
        """The reverse of `dump`."""
        window = cls(fill, is_keyed=values[2] is not None)
        window.width, window.mask, keys = values
        window.keys = None if keys is None else bytearray(keys)
        fill.messages += window.width
        return window
