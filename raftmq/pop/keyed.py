"""A backlog ordered by key: of each key at most one message is under way.

    queue    a1 b1 a2 -- c1 a3 b2        ("--" has no key)
    out      a1 b1    -- c1              one of each key, and all without a key
    held           a2       a3 b2        chains: a: a2 a3, b: b2
    ack a1 → a2 is freed: the next hand-out has it, before all that is fresh

A key is *busy* from when one of its messages goes out until that message's turn ends: the message
is acked, thrown away, lost to retention, or a dead letter that is not parked. A message that failed
stays in its turn while it waits, so it holds up its key and nothing else. Several messages of one
key never share a lease: so no settlement, in whatever order, can break the order.

A fresh message is looked at once: it goes out, or into its key's chain, or is passed over. So a
key with thousands of messages costs nothing while it waits.

The first filter of a group holds for all messages that were not handed out, held ones too. So held
messages are in *doubt* until the leader has described them, from the lowest offset on.
Those that do not match are passed over, and a message in doubt does not go out.

Invariants:
- Only a busy key has a chain.
- The key of a freed message is busy: the freed message itself holds it.

Left out: keys themselves. Two keys with one hash of 32 bits wait for each other, without other
harm. A queue with `HELD_MAX` messages in chains hands out nothing fresh until one of their keys
moves. A redriven letter that was not parked goes to the end of its key's chain: late, but in turn.

Sources: Amazon SQS FIFO (message groups); RocketMQ's FIFO pop, which stops the whole queue for one
message; rocketmq-clients' FifoConsumeAccelerator, which does it in the client.
"""

import struct
from array import array
from heapq import heapify, heappop, heappush
from typing import Any

from .backlog import Backlog
from .pieces import KEY_BYTES, WIDTH_MAX, Piece, bits_of, positions
from .windows import Fill, Window

HELD_MAX = 65_536
"""Messages of a queue that wait in chains."""
_CHUNK_MAX = 4096
"""Messages looked at in one go."""
_KEY_BITS = 32


class KeyedBacklog(Backlog):
    """One queue's messages that a group ordered by key has not settled."""

    is_keyed = True

    def __init__(self, begun: int, *, is_fed: bool = True, fill: Fill | None = None) -> None:
        super().__init__(begun, is_fed=True, fill=fill)
        self._busy: set[int] = set()
        self._chains: dict[int, array[int]] = {}
        self._chained = 0
        # Messages whose turn has come, as `offset << 32 | key`: a heap, the lowest offset first.
        self._freed: list[int] = []
        # Held messages from the first offset up to the second are in doubt; equal: none is.
        self._doubt = (begun, begun)

    @property
    def held(self) -> int:
        """Messages in chains, and those whose turn has come."""
        return self._chained + len(self._freed)

    def set_fed(self, is_fed: bool) -> None:
        """Nothing to do: a group ordered by key is always fed."""

    def set_filtered(self, is_filtered: bool) -> None:
        """The first filter puts all held messages in doubt; without a filter none is."""
        super().set_filtered(is_filtered)
        held = [min(chain) for chain in self._chains.values()]
        held += [each >> _KEY_BITS for each in self._freed]
        self._doubt = (min(held), self.next) if is_filtered and held else (self.next, self.next)
        assert self._doubt[0] <= self.next, "fresh messages are in doubt"

    @property
    def is_in_doubt(self) -> bool:
        """Whether some held messages may not match the filter."""
        return self._doubt[0] < self._doubt[1]

    @property
    def known(self) -> int:
        """The offset to feed from: the first one in doubt, or the window's end."""
        return self._doubt[0] if self.is_in_doubt else super().known

    def wants_feed(self, end: int) -> bool:
        """Whether messages are in doubt, or the window is low and the queue goes on behind it."""
        return self.is_in_doubt or super().wants_feed(end)

    def feed(self, base: int, count: int, mask: int | None, keys: bytes | None) -> tuple[int, int]:
        """Take in the leader's description: of messages in doubt first, then of fresh ones."""
        if not self.is_in_doubt:
            return super().feed(base, count, mask, keys)
        start, stop = self._doubt
        if base != start:
            return 0, 0
        count = max(0, min(count, stop - start))
        assert stop <= self.next, "fresh messages are in doubt"
        self._doubt = (start + count, stop)
        missed = 0 if mask is None else ~mask & (1 << count) - 1
        return count, self._pass_held(start, missed) if missed else 0

    def _pass_held(self, base: int, missed: int) -> int:
        """Pass over held messages out of those that do not match; which were held, as bits."""
        found: list[int] = []

        def is_missed(offset: int) -> bool:
            return offset >= base and bool(missed >> offset - base & 1)

        # Chains first: a freed message that goes passes its turn to a chain, which must match too.
        for key in sorted(self._chains):
            chain = self._chains[key]
            gone = [offset for offset in chain if is_missed(offset)]
            if gone:
                found += gone
                self._chained -= len(gone)
                self._chains[key] = array("Q", [each for each in chain if not is_missed(each)])
                if not self._chains[key]:
                    del self._chains[key]
        lost = sorted(each for each in self._freed if is_missed(each >> _KEY_BITS))
        if lost:
            self._freed = [each for each in self._freed if not is_missed(each >> _KEY_BITS)]
            heapify(self._freed)
        for each in lost:
            found.append(each >> _KEY_BITS)
            self.end_turn(Piece(each >> _KEY_BITS, 1, 0, _packed([each & (1 << _KEY_BITS) - 1])))
        self.passed += len(found)
        self._check_chains()
        return sum(1 << offset - base for offset in found)

    @property
    def has_returned(self) -> bool:
        """Whether there may be messages to hand out, fresh ones included."""
        assert self.window is not None
        is_open = self._chained < HELD_MAX and bool(self.window.mask)
        return is_open or bool(self._freed) or bool(self._ready)

    def has_some(self, end: int) -> bool:
        """As `has_returned`: a message behind the window does not go out."""
        return self.has_returned

    # Hand-out

    def _take_fresh(self, count: int, end: int) -> Piece | None:
        assert self.window is not None
        offsets: list[int] = []
        keys: list[int] = []
        self._take_freed(count, offsets, keys)
        while len(offsets) < count and self.window.mask and self._chained < HELD_MAX:
            # Another chunk could make the lease wider than `WIDTH_MAX`.
            if offsets and self.next - offsets[0] >= WIDTH_MAX - _CHUNK_MAX:
                break
            self._look(min(count - len(offsets), _CHUNK_MAX), offsets, keys, self.window)
        if not offsets:
            return None
        assert len(offsets) <= count, f"{len(offsets)} messages go out, for a credit of {count}"
        return Piece(offsets[0], bits_of(offsets), 0, _packed(keys))

    def _take_freed(self, count: int, offsets: list[int], keys: list[int]) -> None:
        freed = self._freed
        doubt = self._doubt[0] if self.is_in_doubt else self.next
        while freed and len(offsets) < count:
            offset = freed[0] >> _KEY_BITS
            # A message in doubt may not match the filter: it waits for the leader to describe it.
            if offset >= doubt:
                break
            if offsets and offset - offsets[0] >= WIDTH_MAX:
                break
            offsets.append(offset)
            keys.append(heappop(freed) & (1 << _KEY_BITS) - 1)

    def _look(self, count: int, offsets: list[int], keys: list[int], window: Window) -> None:
        """Look at a stretch of fresh messages, until `count` of them go out."""
        assert window.keys is not None
        width = min(window.width, max(2 * count, 64), _CHUNK_MAX)
        bits = window.mask & (1 << width) - 1
        among = _unpacked(window.keys[: width * KEY_BYTES])
        found = range(width) if bits.bit_count() == width else positions(bits)
        seen, looked, room = 0, width, HELD_MAX - self._chained
        busy, chains = self._busy, self._chains
        for at in found:
            key = among[at]
            if key in busy:
                # The chains are full: from here on messages stay fresh, in their order.
                if room == 0:
                    looked = at
                    break
                room -= 1
                chains.setdefault(key, array("Q")).append(self.next + at)
            else:
                if count == 0:
                    looked = at
                    break
                count -= 1
                if key:
                    busy.add(key)
                offsets.append(self.next + at)
                keys.append(key)
            seen += 1
        self._chained = HELD_MAX - room
        self._check_chains()
        window.cut(looked)
        self.next += looked
        self.passed += looked - seen
        self._skip()

    # Turns

    def end_turn(self, messages: Piece) -> None:
        """Free the next message of each key; a key without one is no longer busy."""
        keys = _unpacked(messages.keys)
        if self._chains.keys().isdisjoint(keys):
            self._busy.difference_update(keys)
            return
        for key in keys:
            chain = self._chains.get(key)
            if chain is None:
                self._busy.discard(key)
                continue
            heappush(self._freed, chain.pop(0) << _KEY_BITS | key)
            self._chained -= 1
            if not chain:
                del self._chains[key]
        self._check_chains()

    def _check_chains(self) -> None:
        # `held` is the count, and a full backlog goes by it; the chains hold the messages.
        assert bool(self._chained) == bool(self._chains), f"{self._chained} held in chains"

    def redrive(self, messages: Piece, *, is_parked: bool) -> None:
        """The messages left their dead letter: parked ones have their turn, others queue up."""
        self.dead -= messages.size
        assert self.dead >= 0, "more messages are redriven than are dead"
        offsets = [messages.base + at for at in positions(messages.bits)]
        for offset, key in zip(offsets, _unpacked(messages.keys), strict=True):
            if key in self._busy and not is_parked:
                self._chains.setdefault(key, array("Q")).append(offset)
                self._chained += 1
                continue
            if key:
                self._busy.add(key)
            heappush(self._freed, offset << _KEY_BITS | key)
        self._check_chains()

    def occupy(self, messages: Piece) -> None:
        """After a restart: the messages went out, so their keys are busy."""
        self._busy.update(_unpacked(messages.keys))
        self._busy.discard(0)

    def trim(self, earliest: int) -> None:
        """Retention: held messages before an offset are gone too. Chains first: so a message that
        is freed afterwards is one that is kept."""
        for key in sorted(self._chains):
            kept = array("Q", [offset for offset in self._chains[key] if offset >= earliest])
            gone = len(self._chains[key]) - len(kept)
            self._chains[key] = kept
            self._chained -= gone
            self.lost += gone
            if not kept:
                del self._chains[key]
        lost = [each for each in self._freed if each >> _KEY_BITS < earliest]
        self._freed = [each for each in self._freed if each >> _KEY_BITS >= earliest]
        heapify(self._freed)
        self._check_chains()
        for each in lost:
            key = each & (1 << _KEY_BITS) - 1
            self.lose(Piece(each >> _KEY_BITS, 1, 0, _packed([key])))
        # The leader can no longer read and describe messages that retention took.
        start, stop = self._doubt
        self._doubt = (min(max(start, earliest), stop), stop)
        super().trim(earliest)

    # As plain values

    def _dump_order(self) -> list[Any]:
        chains = [[key, _packed_offsets(self._chains[key])] for key in sorted(self._chains)]
        doubt = list(self._doubt) if self.is_in_doubt else []
        return [chains, sorted(self._freed), doubt]

    def _load_order(self, values: list[Any]) -> None:
        chains, self._freed, *more = values
        doubt = more[0] if more else []
        self._doubt = (doubt[0], doubt[1]) if doubt else (self.next, self.next)
        self._chains = {key: _unpacked_offsets(offsets) for key, offsets in chains}
        self._chained = sum(map(len, self._chains.values()))
        self._busy = {each & (1 << _KEY_BITS) - 1 for each in self._freed} - {0}
        for each in self._ready:
            self.occupy(each)


def _packed(keys: list[int]) -> bytes:
    return struct.pack(f"<{len(keys)}I", *keys)


def _unpacked(keys: bytes | bytearray) -> tuple[int, ...]:
    return struct.unpack(f"<{len(keys) // KEY_BYTES}I", keys)


def _packed_offsets(offsets: "array[int]") -> bytes:
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def _unpacked_offsets(offsets: bytes) -> "array[int]":
    return array("Q", struct.unpack(f"<{len(offsets) // 8}Q", offsets))
