"""A trio stream behind the interface that the client uses.

The client uses anyio, which offers sockets only; streams of a simulated network are trio streams.
"""

import anyio
import trio


class TrioStream:
    """A trio stream behind the interface of the client: for worlds made of trio streams."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, item: bytes) -> None:
        """Send all bytes of `item`."""
        try:
            await self._stream.send_all(item)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error
        except trio.ClosedResourceError as error:
            raise anyio.ClosedResourceError from error

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Receive at least one byte."""
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
        """Close the stream at once."""
        await trio.aclose_forcefully(self._stream)
