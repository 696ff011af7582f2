"""The seam between the client and what lies outside: network, wall clock, randomness.

As the broker's `World`, and for the same reason: the client that applications use also runs in a
made-up world, on a seeded scheduler, where a test decides what breaks and when.
"""

from random import Random
from typing import Protocol


class Stream(Protocol):
    """A connection's bytes. Errors are those of anyio's byte streams."""

    async def send(self, item: bytes) -> None:
        """Send all of it. Raises `anyio.BrokenResourceError` or `anyio.ClosedResourceError`."""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """At least one byte. Raises `anyio.EndOfStream`, or as `send`."""

    async def aclose(self) -> None:
        """Close it; a waiting `send` or `receive` ends with an error."""


class ClientWorld(Protocol):
    """All that a client touches outside itself. Monotonic time is the event loop's."""

    random: Random
    """Producer ids and jitter come from here."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""

    async def connect(self, host: str, port: int) -> Stream:
        """Open a connection. Raises `OSError` if nobody answers."""
