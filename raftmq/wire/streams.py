"""Abilities of a connection's stream that both of its ends look for."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class SendsNowait(Protocol):
    """A stream that can also send without waiting."""

    def send_nowait(self, data: bytes) -> int:
        """Send as many bytes as possible without waiting; the number of bytes sent."""
