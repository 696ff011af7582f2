"""The seam between a node and everything outside it: network, disk, clock, randomness.

The broker reaches the outside only through a `World`. The real one is sockets, files and the
system's clock (`system_world`); a simulated one runs whole clusters in memory on a seeded
scheduler. The same broker code runs in both, so the findings of a test in the simulated world are
true of the real one.

| what | real | simulated |
|---|---|---|
| `files` | the file system | memory that knows what would survive a power loss |
| `worker` | a thread | a task that takes simulated time |
| `connect`, `listen` | TCP | byte streams in memory with delay, loss of links, partitions |
| `now_ms` | the wall clock | a clock that can be skewed and set back |
| `random` | seeded by the system | seeded by the test |

Monotonic time is trio's own clock, which a test replaces by `MockClock`.

Invariants:
- A worker runs its jobs one at a time, in the order of submission.
- `done` is called on the event loop, once for each job, in the same order; after `close` no more.
"""

from collections.abc import Callable
from random import Random
from typing import Protocol, TypeVar, runtime_checkable

import trio

from raftmq.log.files import FileSystem
from raftmq.tls.names import CertificateName

T = TypeVar("T")

Outcome = tuple[T | None, BaseException | None]
"""(result, None) or (None, error)."""

Done = Callable[[T | None, BaseException | None], None]
"""Called on the loop with the outcome. It must not raise."""


class Worker(Protocol):
    """Runs blocking jobs beside the event loop."""

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        """Run `job` after those submitted before it, then `done` on the loop."""

    def try_now(self, job: Callable[[], T]) -> Outcome[T] | None:
        """Run a small job here and now, if the worker is idle and quick; None: `submit` it."""

    def close(self) -> None:
        """Finish the jobs submitted so far and end; blocks until then."""


@runtime_checkable
class Lasting(Protocol):
    """A stream that breaks when the other end is gone without a word."""

    def give_up_after(self, seconds: float) -> None:
        """Break when nothing that was sent is acknowledged for this long; an idle stream is probed
        (keep-alive). Without this, TCP tries for a quarter of an hour, at ever longer intervals:
        after an outage of a minute the next try may be a minute away."""


def give_up_after(stream: trio.abc.Stream, seconds: float) -> None:
    """Have a stream break if its other end is silent for this long; streams within one process
    have no such end."""
    if isinstance(stream, Lasting):
        stream.give_up_after(seconds)


@runtime_checkable
class Located(Protocol):
    """A stream whose other end has an address."""

    @property
    def address(self) -> str:
        """The address of the machine at the other end; empty: it is this one."""


def address_of(stream: trio.abc.Stream) -> str:
    """The address of a stream's other end; empty: it is on this machine."""
    return stream.address if isinstance(stream, Located) else ""


class PlainText(Exception):
    """The other end of a connection that is to be under TLS begins without a handshake."""


@runtime_checkable
class Secured(Protocol):
    """A stream that is to be under TLS."""

    async def secure(self) -> frozenset[CertificateName] | None:
        """Exchange keys and certificates, once, before any byte of a frame.

        Returns:
            The names in the certificate that the other end has shown; none: it showed no
            certificate, or one without names. None: the stream is plain. Cancelling leaves the
            stream of no use.

        Raises:
            PlainText: the other end speaks without TLS; it can still be answered so.
            trio.BrokenResourceError: the other end was refused, refuses this one, or is gone.
        """


async def secure(stream: trio.abc.Stream) -> frozenset[CertificateName] | None:
    """The names in the other end's certificate, after a handshake; None: the stream is plain.
    Raises as `Secured.secure`."""
    return await stream.secure() if isinstance(stream, Secured) else None


class World(Protocol):
    """All that a node touches outside itself."""

    files: FileSystem
    """The disk; for jobs on a worker. On the loop only while the node starts, while a replica is
    opened, restored or cleared, in a small pass on a quick disk, and where a node that is met for
    the first time is written down."""
    random: Random
    """The source of every random choice of a node."""
    descriptors_max: int
    """Files and sockets that the process may have open."""
    is_under_tls: bool
    """True: all connections are to be under TLS."""

    @property
    def process_id(self) -> int:
        """The number of the node's process."""

    @property
    def certificate_ends_ms(self) -> int:
        """When the node's certificate ends, milliseconds since 1970; 0: it has none."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970; it may step back."""

    def worker(self, name: str, nursery: trio.Nursery) -> Worker:
        """Start a worker; it ends with `close` or with the nursery."""

    async def listen(self, host: str, port: int) -> trio.abc.Listener[trio.abc.Stream]:
        """Accept connections at an address. Raises `OSError` if it is taken."""

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection.

        Raises:
            ConnectionRefusedError: the other machine says that no process listens there.
            OSError: the address cannot be reached.
            UnicodeError, ValueError, OverflowError: raised by a resolver for some texts.
        """


async def run_on(worker: Worker, job: Callable[[], T]) -> T:
    """Run a job on a worker and wait for its result; cancelling leaves it to finish unseen."""
    ended = trio.Event()
    outcome: list[tuple[T | None, BaseException | None]] = []

    def done(result: T | None, error: BaseException | None) -> None:
        outcome.append((result, error))
        ended.set()

    worker.submit(job, done)
    await ended.wait()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # without an error there is a result, maybe None
