"""Handles: a message under a lease, as one short text that any process can settle.

`raftmq pop` prints a handle for each message; the process may end, the lease runs on, and `raftmq
ack` with the handle settles the message. A handle holds all that a leader needs:

| field | form |
|---|---|
| version | one byte, 1 |
| number of the attachment, partition group, token, consumer, offset | unsigned varints (LEB128) |
| check | CRC-32C of the bytes before, its two lowest bytes, little-endian |

as one big-endian integer, in the digits `0-9A-Za-z`, which a shell passes on and a double click
selects as one word.

A consumer numbers its settlements, and the machine carries out each number once, and no lower one
after it. Settlements by handle are counted apart, so the consumer may be open and settle as well.
A settlement by handle has the clock's milliseconds as its number, with a random part below them. So
two processes that settle for one consumer at the same moment do not take each other's answers, and
the refusal of an overtaken one names the number to go above.

Invariants:
- A handle that was cut, or of which a character changed, is refused; it settles no other message.

Messages of one lease are settled together, so messages rejected together are one dead letter; the
answer says which of them were in hand.

Left out: handles of whole leases.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from raftmq.client.routing.refusals import Overtaken, over_limit, reason_of
from raftmq.client.routing.requests import after, ask_leader, seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.world import ClientWorld
from raftmq.errors import Reason, Rejected
from raftmq.pop.actions import FENCED, OVER_LIMIT, Action
from raftmq.pop.pieces import WIDTH_MAX
from raftmq.wire.popping import SETTLE_ITEMS_MAX, Settle, Settled, SettleItem

from .lease_bits import packed, results_of, settled_of
from .popped import LeasedMessage, delay_ms
from .settlement_sender import HEADER_BYTES, ITEM_BYTES

OVERTAKEN_MAX = 5
"""How often another process may overtake this one's settlement number before this one fails."""
RANDOM_BITS = 22
"""Low bits of a settlement's number; the milliseconds since 1970 above fit into 63 until 2039."""

_VERSION = 1
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_CHARACTERS_MAX = 100
_FIELD_MAX = (1 << 64) - 1


class Handle(NamedTuple):
    """A message under a lease."""

    number: int
    """The attachment's number."""
    partition_group: int
    """The partition group that handed the message out."""
    token: int
    """The lease's token."""
    consumer: int
    """The consumer that popped the message."""
    offset: int
    """The message's offset in its queue."""


def handle_of(message: LeasedMessage) -> str:
    """The handle of a popped message."""
    holder, (lease, _) = message.settlements.holder, message.part
    return format_handle(
        Handle(holder.number, lease.group, lease.token, holder.consumer, message.offset)
    )


def format_handle(handle: Handle) -> str:
    """The handle as a text.

    >>> text = format_handle(Handle(1, 2, 5 << 20, 2**62, 1000))
    >>> text.isalnum(), parse_handle(text).offset
    (True, 1000)
    """
    data = bytes([_VERSION]) + b"".join(map(_varint, handle))
    value = int.from_bytes(data + _check(data), "big")
    digits = []
    while value:
        value, digit = divmod(value, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def parse_handle(text: str) -> Handle:
    """The reverse of `format_handle`.

    Raises:
        Rejected: `BAD_ARGUMENT`, the text is no handle, or was damaged.
    """
    handle = _parsed(text)
    if handle is None:
        message = f"{text[:_CHARACTERS_MAX]!r} is no handle as `raftmq pop` prints them, or a part"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    return handle


def _parsed(text: str) -> Handle | None:
    if not 0 < len(text) <= _CHARACTERS_MAX or not _VALUES.keys() >= set(text):
        return None
    value = 0
    for digit in text:
        value = value * len(_DIGITS) + _VALUES[digit]
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    if data[:1] != bytes([_VERSION]) or data[-2:] != _check(data[:-2]):
        return None
    fields = list(_varints(data[1:-2]))
    if len(fields) != len(Handle._fields) or max(fields) > _FIELD_MAX:
        return None
    handle = Handle(*fields)
    # A handle has one text: another text for it was not written by `format_handle`.
    return handle if format_handle(handle) == text else None


def _check(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")[:2]


def _varint(value: int) -> bytes:
    assert value >= 0, value
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


class Disposition(NamedTuple):
    """A settlement of messages, as the application asks for it; AMQP 1.0's word."""

    action: Action
    """The kind of settlement."""
    delay_ms: int = -1
    """See `SettleItem.delay_ms`."""
    reason: str = ""
    """See `SettleItem.reason`."""


def settlement_number(world: ClientWorld) -> int:
    """The number of a settlement that is made now."""
    return world.now_ms() << RANDOM_BITS | world.random.getrandbits(RANDOM_BITS)


def disposition_of(action: str, *, delay: float | None, reason: str) -> Disposition:
    """The arguments of `Client.settle`, checked.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no such action, or a delay is missing, not allowed or
            negative, or the reason is no text.
    """
    known = {each.name.lower(): each for each in Action}
    if action not in known:
        message = f"there is no action {action!r}: it is one of {', '.join(known)}"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    found = known[action]
    if found is Action.EXTEND and delay is None:
        raise Rejected(Reason.BAD_ARGUMENT, "to extend, say for how many seconds: delay=")
    if delay is not None and found not in (Action.EXTEND, Action.NACK):
        raise Rejected(Reason.BAD_ARGUMENT, f"delay= is for nack and extend, not for {action}")
    return Disposition(found, delay_ms(delay), reason_of(reason))


async def settle_handles(
    router: Router,
    handles: Sequence[Handle],
    disposition: Disposition,
    *,
    number: int,
    timeout: float | None = None,
) -> set[Handle]:
    """Settle messages by their handles; returns the handles that are settled. The consumer no
    longer had the others: their time ran out, or they were settled before.

    `number` is the first settlement's: see `settlement_number`. After an error some messages may be
    settled; a repeat is safe, and leaves those out of its result.

    Raises:
        Rejected: `BAD_ARGUMENT`, a delay is out of its range; `UNKNOWN_GROUP`, the group was
            deleted.
        Unavailable, OutcomeUnknown: a leader did not answer in time.
    """
    left = seconds_left(router, timeout)
    consumers: dict[tuple[int, int, int], list[Handle]] = {}
    for handle in dict.fromkeys(handles):
        key = (handle.partition_group, handle.number, handle.consumer)
        consumers.setdefault(key, []).append(handle)
    settled: set[Handle] = set()
    groups: set[int] = set()
    for key, mine in consumers.items():
        settler = _Settler(router, key, number, left)
        for parts in _requests([_Part(disposition, each) for each in _by_lease(mine)]):
            with after(groups, "messages of partition groups"):
                settled |= await settler.settle(parts)
            groups.add(key[0])
    return settled


def _by_lease(handles: list[Handle]) -> Iterator[list[Handle]]:
    """Handles of one lease together, as far as a lease can span them."""
    found: list[Handle] = []
    for handle in sorted(handles):
        is_far = found and handle.offset - found[0].offset >= WIDTH_MAX
        if is_far or (found and handle.token != found[0].token):
            yield found
            found = []
        found.append(handle)
    yield found


def _requests(parts: list["_Part"]) -> Iterator[list["_Part"]]:
    """The parts, in lists that fit into one request."""
    found: list[_Part] = []
    size = 0
    for part in parts:
        size += part.size
        if found and (size > HEADER_BYTES or len(found) == SETTLE_ITEMS_MAX):
            yield found
            found, size = [], part.size
        found.append(part)
    yield found


class _Part:
    """Messages of one lease that are settled together."""

    def __init__(self, disposition: Disposition, handles: list[Handle]) -> None:
        self._handles = handles
        self._base = handles[0].offset
        self._bits = sum(1 << handle.offset - self._base for handle in handles)
        action, delay_ms, reason = disposition
        token = handles[0].token
        if action is Action.EXTEND:
            self.item = SettleItem(action, token, delay_ms=delay_ms)
        else:
            base, bits = packed(self._base, self._bits)
            self.item = SettleItem(action, token, base, bits, delay_ms, reason)

    @property
    def size(self) -> int:
        """Bytes in a request, at the most."""
        return ITEM_BYTES + len(self.item.bits) + 4 * len(self.item.reason)

    def settled(self, result: int, which: bytes) -> set[Handle]:
        """The handles that are settled, by the answer."""
        if result == OVER_LIMIT:
            raise over_limit(Action(self.item.action), self.item.delay_ms)
        if self.item.action == Action.EXTEND:
            return set() if result == FENCED else set(self._handles)
        bits = settled_of(self._bits, result, which)
        return {each for each in self._handles if bits >> each.offset - self._base & 1}


class _Settler:
    """Settles messages that one consumer had of one partition group."""

    def __init__(
        self,
        router: Router,
        key: tuple[int, int, int],
        sequence: int,
        left: Callable[[], float],
    ) -> None:
        self._router = router
        self._key = key
        self._sequence = sequence
        self._left = left

    async def settle(self, parts: list[_Part]) -> set[Handle]:
        """Settle messages by one request."""
        results = await self._ask([part.item for part in parts])
        together = zip(parts, results, strict=True)
        return {handle for part, result in together for handle in part.settled(*result)}

    async def _ask(self, items: list[SettleItem]) -> list[tuple[int, bytes]]:
        partition_group, number, consumer = self._key
        for attempt in range(OVERTAKEN_MAX + 1):
            request = Settle(
                partition_group, number, consumer, self._sequence, items, by_handle=True
            )
            self._sequence += 1
            try:
                reply = await ask_leader(self._router, request, Settled, timeout=self._left())
                return results_of(reply, len(items))
            except Overtaken as error:
                # Another process settled for this consumer by a later clock: go above its number.
                if attempt == OVERTAKEN_MAX:
                    raise
                beyond = self._router.draw_request() & (1 << RANDOM_BITS) - 1
                self._sequence = error.last + 1 + beyond
        raise AssertionError("the loop returns or raises")
