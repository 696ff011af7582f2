"""The network of a made-up world: byte streams in memory."""

import trio
import trio.testing

Address = tuple[str, int]


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """Streams that somebody opened to one address."""

    def __init__(self, network: "Network", address: Address) -> None:
        self._network = network
        self._address = address
        self.send, self._receive = trio.open_memory_channel[trio.abc.Stream](1000)

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        return await self._receive.receive()

    async def aclose(self) -> None:
        """Give up the address."""
        self._network.listeners.pop(self._address, None)
        await self._receive.aclose()


class Network:
    """All streams of a made-up world."""

    def __init__(self) -> None:
        self.listeners: dict[Address, Listener] = {}

    async def listen(self, host: str, port: int) -> Listener:
        """Take an address."""
        if (host, port) in self.listeners:
            raise OSError(f"{host}:{port} is in use")
        listener = self.listeners[host, port] = Listener(self, (host, port))
        return listener

    async def connect(self, host: str, port: int, *, is_lockstep: bool = False) -> trio.abc.Stream:
        """Open a stream; in lockstep nothing is buffered in it."""
        await trio.lowlevel.checkpoint()
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        pair = trio.testing.lockstep_stream_pair if is_lockstep else trio.testing.memory_stream_pair
        near, far = pair()
        listener.send.send_nowait(far)
        return near
