"""Handles: a message under a lease, as one short text that any process can settle.

`raftmq pop` prints one for each message; the process may end, the lease runs on, and `raftmq ack`
with the handle settles it. A handle holds all that a leader must be told:

| field | form |
|---|---|
| version | one byte, 1 |
| number of the attachment, partition group, token, consumer, offset | unsigned varints (LEB128) |
| check | CRC-32C of what stands before it, its two lowest bytes, little-endian |

as one big-endian integer, in the digits `0-9A-Za-z`: nothing that a shell or a double click minds.

A consumer numbers its settlements, and the machine carries out each number once, and no lower one
after it. Settlements by handle are counted apart, so the consumer may be open and settle as well.
Whoever settles by handle numbers by the clock, with a random part below the milliseconds: so two
processes that settle for one consumer at the same moment do not take each other's answers, and the
one that is overtaken is told the number to go above.

Invariants:
- A text that was cut, or of which a character changed, is refused; it settles nothing else.

Each message is settled by itself: of several that are settled together the answer says how many
were in hand, not which. But for acks the last one of a lease goes first, as in the order of a queue
such a message takes all that comes after it in its lease along.

Left out: handles of whole leases.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from raftmq.errors import Reason, Rejected
from raftmq.wire.codec import unpack
from raftmq.wire.messages import FrameKind
from raftmq.wire.popping import FENCED, OVER_LIMIT, Action, Settle, Settled, SettleItem

from .offsets import after, seconds_left
from .popped import LeasedMessage
from .popping import PopConsumer
from .refusals import Overtaken
from .router import Router
from .settling import reason_of
from .starting import milliseconds
from .world import ClientWorld

ITEMS_MAX = 1000
"""Messages settled by one request."""
OVERTAKEN_MAX = 5
"""How often another process may number its settlements above ours before this one gives up."""
RANDOM_BITS = 22
"""Of a settlement's number: with the milliseconds since 1970 above them it has 63 until 2039."""

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
    """The partition group that handed it out."""
    token: int
    """The lease."""
    consumer: int
    """To whom it was handed."""
    offset: int
    """The message's offset in its queue."""


def handle_of(consumer: PopConsumer, message: LeasedMessage) -> str:
    """The handle of a message that this consumer popped."""
    assert consumer._intake is not None, "what popped was opened"
    holder = consumer._intake.holder
    lease, _ = message.part
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
        Rejected: `BAD_ARGUMENT`, it is no handle, or was damaged.
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
    # One handle, one text: what is written in another way was not written by us.
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


class Deed(NamedTuple):
    """What becomes of messages."""

    action: Action
    """What is done with them."""
    delay_ms: int = -1
    """See `SettleItem.delay_ms`."""
    reason: str = ""
    """See `SettleItem.reason`."""


def settlement_number(world: ClientWorld) -> int:
    """The number of a settlement that is made now."""
    return world.now_ms() << RANDOM_BITS | world.random.getrandbits(RANDOM_BITS)


def deed_of(action: str, *, delay: float | None, reason: str) -> Deed:
    """What `Client.settle` is told, as it is sent.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no such action, or a delay is missing or too many, or
            the reason is no text.
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
    return Deed(
        found, -1 if delay is None else max(0, milliseconds(delay, "delay")), reason_of(reason)
    )


async def settle_handles(
    router: Router,
    handles: Sequence[Handle],
    deed: Deed,
    *,
    number: int,
    timeout: float | None = None,
) -> set[Handle]:
    """Settle messages by their handles; those that are settled. The others were not the consumer's
    any more: their time ran out, or they were settled before.

    `number` is that of the first settlement: see `settlement_number`. Each request has a timeout of
    its own. When it raises, some may be settled; to do it again is safe, and says of those that
    they are the consumer's no more.

    Raises:
        Rejected: `BAD_ARGUMENT`, a delay is out of its range; `UNKNOWN_GROUP`, it was deleted.
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
        mine.sort(reverse=deed.action is not Action.ACK)
        settler = _Settler(router, key, deed, number, left())
        for start in range(0, len(mine), ITEMS_MAX):
            with after(groups, "messages of partition groups"):
                settled |= await settler.settle(mine[start : start + ITEMS_MAX])
            groups.add(key[0])
    return settled


class _Settler:
    """Settles what one consumer had of one partition group."""

    def __init__(
        self,
        router: Router,
        key: tuple[int, int, int],
        deed: Deed,
        sequence: int,
        timeout: float | None,
    ) -> None:
        self._router = router
        self._key = key
        self._deed = deed
        self._sequence = sequence
        self._timeout = timeout

    async def settle(self, handles: list[Handle]) -> set[Handle]:
        """Settle messages, in this order, `ITEMS_MAX` at the most."""
        results = await self._ask([self._item(handle) for handle in handles])
        together = zip(handles, results, strict=True)
        return {handle for handle, result in together if self._is_settled(result)}

    def _item(self, handle: Handle) -> SettleItem:
        action, delay_ms, reason = self._deed
        if action is Action.EXTEND:
            return SettleItem(action, handle.token, delay_ms=delay_ms)
        return SettleItem(action, handle.token, handle.offset, b"\x01", delay_ms, reason)

    def _is_settled(self, result: int) -> bool:
        if result == OVER_LIMIT:
            asked = self._deed.delay_ms
            message = f"{self._deed.action.name.lower()} of {asked} ms is out of range"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        # 0: retention took it.
        return result != FENCED and (self._deed.action is Action.EXTEND or result > 0)

    async def _ask(self, items: list[SettleItem]) -> list[int]:
        partition_group, number, consumer = self._key
        for attempt in range(OVERTAKEN_MAX + 1):
            request = Settle(
                partition_group, number, consumer, self._sequence, items, by_handle=True
            )
            self._sequence += 1
            try:
                frame = await self._router.call_leader(
                    partition_group,
                    FrameKind.SETTLE,
                    request,
                    timeout=self._timeout,
                    is_change=True,
                )
                return unpack(Settled, frame.header).results
            except Overtaken as error:
                # Another process settles for the same consumer, and its clock is ahead of ours.
                if attempt == OVERTAKEN_MAX:
                    raise
                beyond = self._router.draw_request() & (1 << RANDOM_BITS) - 1
                self._sequence = error.last + 1 + beyond
        raise AssertionError("the loop returns or raises")
