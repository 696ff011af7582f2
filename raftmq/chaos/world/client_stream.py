"""A trio stream behind the face that the client uses.

The client speaks anyio, which gives it sockets only; streams of a simulated network are trio's.
"""

import anyio
import trio


class TrioStream:
    """A trio stream behind the face that the client uses: for worlds made of trio streams."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, item: bytes) -> None:
        """Send all of it."""
        try:
            await self._stream.send_all(item)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error
        except trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """At least one byte."""
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error
        except trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error
        if not data:
            raise anyio.EndOfStream
        return bytes(data)

    async def aclose(self) -> None:
        """Close it at once."""
        await trio.aclose_forcefully(self._stream)
