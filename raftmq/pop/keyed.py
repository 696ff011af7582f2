"""A backlog ordered by key: the messages of a key go out in *runs*, one lease at a time.

    queue    a1 b1 a2 -- c1 a3 b2        ("--" has no key)

    run 1    out   a1 b1    -- c1        one of each key, and all without a key
             held        a2       a3 b2  chains: a: a2 a3, b: b2
             ack a1 → a2 is freed: the next hand-out has it, before all that is fresh

    run 9    out   a1 b1 a2 -- c1        to a consumer that asks for five
             held                 a3 b2  chains: a: a3, b: b2
             ack a1, ack a2 → a3 is freed

A key is *busy* from when a run of its messages goes out until their turns end: each is acked,
thrown away, lost to retention, or a dead letter that is not parked. A message that failed stays in
its turn while it waits, so it holds up its key and nothing else.

By old records (before version 3 of a data group's) a redriven letter that was not parked waited in
longer runs for all parked ones of its key, those after it too. A log of old records gives the state
that it gave.

With a run of 1, messages of one key never share a lease: so no settlement, in whatever order, can
break the order. In a longer run, a message that leaves the lease by other means than an ack takes
along the later ones of its key in that lease (`behind`): their attempt does not count, and they
are held again. A message that fails while earlier ones of its key are in hand is held for these,
not for its delay. A parked message holds up those after it alone.

A fresh message is looked at once: it goes out, or into its key's chain, or is passed over. So a
key with thousands of messages costs nothing while it waits.

The first filter of a group holds for all messages that were not handed out, held ones too. So held
messages are in *doubt* until the leader has described them, from the lowest offset on.
Those that do not match are passed over, and a message in doubt does not go out.

Invariants:
- Only a busy key has a chain.
- The key of a freed message is busy: the freed message itself holds it.
- The messages of a key that are leased are in one lease.
- With longer runs chains rise; with a run of 1 a redriven letter stands last in its chain.

Left out: keys themselves. Two keys with one hash of 32 bits wait for each other, without other
harm. Holding a consumer to the order within its lease. A queue with `HELD_MAX` messages in chains
hands out nothing fresh until one of their keys moves; messages that come back may exceed that. A
redriven letter that was not parked is late, but in turn. In longer runs a message that came back
and did not fail is as if it had never gone out: a first filter holds for it, and in a full group it
waits as fresh ones do.

Sources: Amazon SQS FIFO (message groups); RocketMQ's FIFO pop, which stops the whole queue for one
message; rocketmq-clients' FifoConsumeAccelerator, which does it in the client.
"""

import struct
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Any

from .backlog import Backlog
from .pieces import KEY_BYTES, WIDTH_MAX, Piece, bits_of, divided, places, positions
from .spans import Span
from .windows import Fill

HELD_MAX = 65_536
"""Messages of a queue that wait in chains."""
_CHUNK_MAX = 4096
"""Messages looked at in one go."""
_KEY_BITS = 32


class _Lease:
    """The messages of a lease, as it fills."""

    __slots__ = ("keys", "offsets", "runs")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.keys: list[int] = []
        # Key → how many of its messages the lease has; empty for a run of 1.
        self.runs = Counter[int]()


class KeyedBacklog(Backlog):
    """One queue's messages that a group ordered by key has not settled."""

    is_keyed = True

    def __init__(self, begun: int, run: int, *, fill: Fill | None = None) -> None:
        super().__init__(begun, is_fed=True, fill=fill)
        self._run = run
        # Key → how many of its messages have a turn that has not ended.
        self._busy: dict[int, int] = {}
        self._chains: dict[int, array[int]] = {}
        self._chained = 0
        # Attempts of messages that failed and are held again, by offset.
        self._tried: dict[int, int] = {}
        # Key → offsets of its parked messages, rising; only with longer runs.
        self._parked: dict[int, list[int]] = {}
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
            # A filter does not hold for a message that failed: the message went out before.
            is_old = offset in self._tried
            return offset >= base and bool(missed >> offset - base & 1) and not is_old

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
    def may_serve(self) -> bool:
        """As in the base class, fresh messages included: those in the window are known."""
        assert self.window is not None
        is_open = self._chained < HELD_MAX and bool(self.window.mask)
        return is_open or bool(self._freed) or bool(self._ready)

    def has_some(self, end: int) -> bool:
        """As `may_serve`: a message behind the window does not go out."""
        return self.may_serve

    # Hand-out

    def _take_fresh(self, count: int, end: int) -> Piece | None:
        assert self.window is not None
        lease = _Lease()
        self._take_freed(count, lease)
        if self._run > 1:
            lease.runs.update(lease.keys)
        while len(lease.offsets) < count and self.window.mask and self._chained < HELD_MAX:
            # Another chunk could make the lease wider than `WIDTH_MAX`.
            if lease.offsets and self.next - lease.offsets[0] >= WIDTH_MAX - _CHUNK_MAX:
                break
            self._look(min(count - len(lease.offsets), _CHUNK_MAX), lease)
        if not lease.offsets:
            return None
        taken = len(lease.offsets)
        assert taken <= count, f"{taken} messages go out, for a credit of {count}"
        return Piece(lease.offsets[0], bits_of(lease.offsets), 0, _packed(lease.keys))

    def _take_freed(self, count: int, lease: "_Lease") -> None:
        offsets, keys = lease.offsets, lease.keys
        freed, chains, parked, is_mixed = self._freed, self._chains, self._parked, False
        doubt = self._doubt[0] if self.is_in_doubt else self.next
        while freed and len(offsets) < count:
            offset = freed[0] >> _KEY_BITS
            # A message in doubt may not match the filter: it waits for the leader to describe it.
            if offset >= doubt:
                break
            if offsets and offset - offsets[0] >= WIDTH_MAX:
                break
            key = heappop(freed) & (1 << _KEY_BITS) - 1
            offsets.append(offset)
            keys.append(key)
            chain = chains.get(key)
            # A redriven letter may stand in the chain with an earlier offset than the freed one.
            if self._run > 1 and chain is not None and chain[0] > offset:
                stop = min(doubt, offsets[0] + WIDTH_MAX)
                if key in parked:
                    stop = min(stop, parked[key][0])
                run = self._take_run(key, min(self._run - 1, count - len(offsets)), stop)
                offsets += run
                keys += [key] * len(run)
                is_mixed |= bool(run)
        if is_mixed:
            # Runs of several keys overlap, and the messages of a lease rise.
            import numpy as np

            every = np.array(offsets, np.uint64)
            order = np.argsort(every)
            offsets[:] = every[order].tolist()
            keys[:] = np.array(keys, np.uint32)[order].tolist()

    def _take_run(self, key: int, count: int, stop: int) -> "array[int]":
        """Take the first messages of a key's chain: at most `count`, before the offset `stop`."""
        chain = self._chains[key]
        width = min(count, bisect_left(chain, stop))
        if self._tried:
            # Messages of one lease have one attempt: one that failed before goes out alone.
            fresh = (at for at, offset in enumerate(chain[:width]) if offset in self._tried)
            width = next(fresh, width)
        run = chain[:width]
        del chain[:width]
        self._chained -= width
        self._busy[key] += width
        if not chain:
            del self._chains[key]
        return run

    def _look(self, count: int, lease: "_Lease") -> None:
        """Look at a stretch of fresh messages, until `count` of them go out."""
        window = self.window
        assert window is not None
        assert window.keys is not None
        width = min(window.width, max(2 * count, 64), _CHUNK_MAX)
        bits = window.mask & (1 << width) - 1
        among = _unpacked(window.keys[: width * KEY_BYTES])
        found = range(width) if bits.bit_count() == width else positions(bits)
        # A run of one key could reach its limit before the lease is full.
        is_limited = self._run <= len(lease.offsets) + count
        if is_limited or not self._take_all(count, among, found, lease):
            self._take_each(count, among, found, lease)
        self._check_chains()

    def _take_all(
        self, count: int, among: Sequence[int], found: Sequence[int], lease: "_Lease"
    ) -> bool:
        """Take the first `count` of the messages at once; False: one of them may have to wait."""
        keys = [among[at] for at in found[: count + 1]]
        # The message behind them is looked at as well: if its key is busy, it belongs in a chain.
        if len(keys) <= count or not self._busy.keys().isdisjoint(keys):
            return False
        keys.pop()
        turns = Counter(keys)
        del turns[0]
        self._busy.update(turns)
        lease.runs.update(turns)
        lease.offsets += [self.next + at for at in found[:count]]
        lease.keys += keys
        self._pass(found[count], count)
        return True

    def _take_each(
        self, count: int, among: Sequence[int], found: Sequence[int], lease: "_Lease"
    ) -> None:
        """Take messages one by one, until the lease or the chains are full."""
        seen, looked, room = 0, len(among), HELD_MAX - self._chained
        busy, chains, limit, parked = self._busy, self._chains, self._run, self._parked
        offsets, keys, runs = lease.offsets, lease.keys, lease.runs
        for at in found:
            key = among[at]
            has_turn = key in runs and runs[key] < limit and key not in chains
            has_turn = has_turn and key not in parked
            if key in busy and not has_turn:
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
                    busy[key] = busy.get(key, 0) + 1
                if key and limit > 1:
                    runs[key] = runs.get(key, 0) + 1
                offsets.append(self.next + at)
                keys.append(key)
            seen += 1
        self._chained = HELD_MAX - room
        self._pass(looked, seen)

    def _pass(self, looked: int, seen: int) -> None:
        """Go on behind `looked` fresh messages, of which `seen` matched and were dealt with."""
        assert self.window is not None
        self.window.cut(looked)
        self.next += looked
        self.passed += looked - seen
        self._skip()

    # Turns

    def end_turn(self, messages: Piece) -> None:
        """Free the next message of each key without another turn, but for those that a parked one
        holds up; a key without a chain is no longer busy."""
        busy, chains = self._busy, self._chains
        keys = _unpacked(messages.keys)
        distinct = set(keys) if chains.keys().isdisjoint(keys) else set[int]()
        if distinct and sum(map(busy.get, distinct, repeat(0))) + keys.count(0) == len(keys):
            # Mostly no message waits for these, and the keys have no turns but those that end here:
            # as no key has fewer, equal sums mean that each has as many.
            for key in distinct:
                busy.pop(key, None)
            return
        for key in keys:
            turns = busy.get(key, 1) - 1
            if turns:
                busy[key] = turns
            else:
                busy.pop(key, None)
            if key in chains and self._comes_next(key, chains[key][0], turns):
                self._free(key)
        self._check_chains()

    def _comes_next(self, key: int, offset: int, turns: int) -> bool:
        """Whether a message may go out beside `turns` others of its key: parked ones after it."""
        parked = self._parked.get(key)
        return not turns if parked is None else turns == len(parked) and offset < parked[0]

    def _free(self, key: int) -> None:
        """Give the first message of a key's chain its turn."""
        chain = self._chains[key]
        offset = chain.pop(0)
        self._chained -= 1
        if not chain:
            del self._chains[key]
        self._busy[key] = self._busy.get(key, 0) + 1
        attempt = self._tried.pop(offset, 0)
        if attempt:
            super().put_back(Piece(offset, 1, attempt, _packed([key])))
        else:
            heappush(self._freed, offset << _KEY_BITS | key)

    def heads(self, messages: Piece) -> tuple[Piece, Piece | None]:
        """Of messages whose lease ended without an ack: the first of each key failed, and the
        others stand behind it."""
        keys = _unpacked(messages.keys)
        if self._run == 1 or len(set(keys)) == len(keys):
            return messages, None
        seen = {0}
        later: list[int] = []
        for at, key in zip(positions(messages.bits), keys, strict=True):
            if key in seen and key:
                later.append(messages.base + at)
            seen.add(key)
        failed, after = _parted(messages, later)
        assert failed is not None, "the first message of a key stands behind another one"
        return failed, after

    def behind(self, taken: Piece, left: Piece) -> Piece | None:
        """Of the messages that are left in a lease: those behind one of the same key that was taken
        out of it."""
        if self._run == 1:
            return None
        import numpy as np

        first: dict[int, int] = {}
        for at, key in zip(positions(taken.bits), _unpacked(taken.keys), strict=True):
            if key:
                first.setdefault(key, taken.base + at)
        # A lease may hold 65,536 messages, and fail one by one.
        keys = np.frombuffer(left.keys, "<u4")
        chosen = np.flatnonzero(np.isin(keys, np.fromiter(first, np.uint32, len(first))))
        if not len(chosen):
            return None
        offsets = places(left.bits)[chosen] + left.base
        pairs = zip(offsets.tolist(), keys[chosen].tolist(), strict=True)
        return _parted(left, [offset for offset, key in pairs if offset > first[key]])[1]

    def put_back(self, messages: Piece) -> None:
        """The messages go out again; in longer runs, those with a key whose attempt does not count,
        or that others of the key come before, are held until it is their turn."""
        if self._run == 1:
            super().put_back(messages)
            return
        held: list[int] = []
        chains: dict[int, list[int]] = {}
        keys = _unpacked(messages.keys)
        for at, key in zip(positions(messages.bits), keys, strict=True):
            offset, chain = messages.base + at, self._chains.get(key)
            is_next = key == 0 or self._comes_next(key, offset, self._busy[key] - 1)
            is_first = chain is None or offset < chain[0]
            if key and not (is_next and is_first and messages.attempt):
                held.append(offset)
                chains.setdefault(key, []).append(offset)
        for key, offsets in chains.items():
            self._hold(offsets, key, messages.attempt)
        direct, behind = _parted(messages, held)
        if direct is not None:
            super().put_back(direct)
        if behind is not None:
            self.end_turn(behind)

    def apart(self, messages: Piece) -> tuple[Piece | None, Piece | None]:
        """Of messages that failed: those that wait for their delay, and those that earlier ones of
        their key, still in hand, hold up."""
        if self._run == 1:
            return messages, None
        keys = _unpacked(messages.keys)
        late = [
            messages.base + at
            for at, key in zip(positions(messages.bits), keys, strict=True)
            if key and self._busy[key] - 1 > len(self._parked.get(key, ()))
        ]
        return _parted(messages, late)

    def bury(self, messages: Piece, *, is_parked: bool) -> None:
        """The messages are in a dead letter now; a parked one holds up those after it."""
        if is_parked:
            self._park(messages)
        super().bury(messages, is_parked=is_parked)

    def unpark(self, messages: Piece, left: Piece | None) -> None:
        """A parked dead letter that held `messages` now holds `left`."""
        for at, key in zip(positions(messages.bits), _unpacked(messages.keys), strict=True):
            if key in self._parked:
                self._parked[key].remove(messages.base + at)
                if not self._parked[key]:
                    del self._parked[key]
        if left is not None:
            self._park(left)

    def _park(self, messages: Piece) -> None:
        if self._run > 1:
            for at, key in zip(positions(messages.bits), _unpacked(messages.keys), strict=True):
                if key:
                    insort(self._parked.setdefault(key, []), messages.base + at)

    def _hold(self, offsets: list[int], key: int, attempt: int = 0) -> None:
        """Put messages into their key's chain, in the places of their offsets."""
        chain = self._chains.setdefault(key, array("Q"))
        if not chain or offsets[-1] < chain[0]:
            self._chains[key] = array("Q", offsets) + chain
        else:
            for offset in offsets:
                insort(chain, offset)
        self._chained += len(offsets)
        if attempt:
            self._tried.update(dict.fromkeys(offsets, attempt))

    def _check_chains(self) -> None:
        # `held` is the count, and a full backlog goes by it; the chains hold the messages.
        assert bool(self._chained) == bool(self._chains), f"{self._chained} held in chains"

    def redrive(self, messages: Piece, *, is_parked: bool, is_old: bool) -> None:
        """The messages left their dead letter: parked ones have their turn, others queue up."""
        self.dead -= messages.size
        assert self.dead >= 0, "more messages are redriven than are dead"
        keys = _unpacked(messages.keys)
        for at, key in zip(positions(messages.bits), keys, strict=True):
            offset = messages.base + at
            if key and self._run > 1:
                self._hold([offset], key)
            elif key in self._busy and not is_parked:
                self._chains.setdefault(key, array("Q")).append(offset)
                self._chained += 1
            else:
                if key:
                    self._busy[key] = 1
                heappush(self._freed, offset << _KEY_BITS | key)
        if self._run > 1 and is_parked:
            self.end_turn(messages)
        for key in keys if self._run > 1 else ():
            turns, chain = self._busy.get(key, 0), self._chains.get(key)
            # Parked messages keep a key busy, and hold up those after them alone.
            is_next = chain is not None and self._comes_next(key, chain[0], turns)
            if key and (not turns if is_old else is_next):
                self._free(key)
        self._check_chains()

    def occupy(self, messages: Piece, *, is_parked: bool = False) -> None:
        """After a restart: the messages went out, so their keys are busy."""
        if is_parked:
            self._park(messages)
        for key in filter(None, _unpacked(messages.keys)):
            self._busy[key] = self._busy.get(key, 0) + 1

    def trim(self, earliest: int) -> None:
        """Retention: held messages before an offset are gone too. Chains first: so a message that
        is freed afterwards is one that is kept."""
        self._tried = {at: attempt for at, attempt in self._tried.items() if at >= earliest}
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
        state = [chains, sorted(self._freed), doubt]
        return [*state, sorted(self._tried.items())] if self._tried else state

    def _load_order(self, values: list[Any]) -> None:
        # Snapshots of older software have no doubt, and those without failed messages no attempts.
        chains, self._freed, *more = values
        doubt, tried = ([*more, [], []])[:2]
        self._tried = dict(tried)
        self._doubt = (doubt[0], doubt[1]) if doubt else (self.next, self.next)
        self._chains = {key: _unpacked_offsets(offsets) for key, offsets in chains}
        self._chained = sum(map(len, self._chains.values()))
        self._busy = {each & (1 << _KEY_BITS) - 1: 1 for each in self._freed}
        self._busy.pop(0, None)
        for each in self._ready:
            self.occupy(each)


def _parted(messages: Piece, later: list[int]) -> tuple[Piece | None, Piece | None]:
    """The messages that are not at these rising offsets, and those that are."""
    if not later:
        return messages, None
    chosen, rest = divided(messages, Span(later[0], bits_of(later)))
    return rest, chosen


def _packed(keys: list[int]) -> bytes:
    return struct.pack(f"<{len(keys)}I", *keys)


def _unpacked(keys: bytes | bytearray) -> tuple[int, ...]:
    return struct.unpack(f"<{len(keys) // KEY_BYTES}I", keys)


def _packed_offsets(offsets: "array[int]") -> bytes:
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def _unpacked_offsets(offsets: bytes) -> "array[int]":
    return array("Q", struct.unpack(f"<{len(offsets) // 8}Q", offsets))
