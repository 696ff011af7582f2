"""Keyed messages whose consumers can check the order.

Message `n` has the key `n % KEYS`, and its body begins with `n`. One producer sends the numbers in
ascending order, so the numbers of a key must ascend wherever a consumer sees them.
"""

from collections.abc import Iterable

KEYS = 4000
QUEUES = 6
"""Queues, partitions or subjects over which a system spreads the keys."""
_NAMES = [f"key-{number}" for number in range(KEYS)]


def keyed(numbers: range, size: int) -> tuple[list[str], list[bytes]]:
    """Keys and bodies of `size` bytes, at least 8, of the messages with these numbers."""
    keys = [_NAMES[number % KEYS] for number in numbers]
    return keys, [number.to_bytes(8, "big").ljust(size, b"x") for number in numbers]


def queue_of(number: int) -> int:
    """The queue of a message's key, from 0, for a system that leaves the choice to its clients."""
    return number % KEYS % QUEUES


class KeyOrder:
    """The order of each key over all consumers of a group."""

    def __init__(self) -> None:
        self._last = [-1] * KEYS

    def check(self, bodies: Iterable[bytes]) -> None:
        """Messages are handed out now. Raises RuntimeError if one comes after a later one."""
        for body in bodies:
            number = int.from_bytes(body[:8], "big")
            key = number % KEYS
            if number <= self._last[key]:
                raise RuntimeError(f"message {number} of key {key} came after {self._last[key]}")
            self._last[key] = number
