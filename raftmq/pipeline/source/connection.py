"""One client a process and cluster: connecting costs more than reading a small range.

A Python worker of Spark's serves many tasks, one at a time; the driver of a stream calls its hooks
one after the other in one process. Their clients are never closed: Spark ends those processes from
outside, and a node copes with connections that break.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from raftmq import blocking
from raftmq.errors import Reason, Rejected, UnreadableBatch
from raftmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient

# (process, url) → its client, and the stack that closes it. A forked process has none yet.
_clients: dict[tuple[int, str], "tuple[BlockingClient, ExitStack]"] = {}


def client(url: str, timeout: float) -> "BlockingClient":
    """The client of this process for a cluster; it connects the first time.

    Args:
        url: the cluster.
        timeout: seconds, the default of every call; that of the first `client` call holds.

    Raises:
        Unavailable: no node answered in time.
        PipelineError: the URL is none.
    """
    known = _clients.get((os.getpid(), url))
    if known is None:
        stack = ExitStack()
        with explained():
            # A job that runs waits for a cluster that is started again.
            known = (
                stack.enter_context(blocking.connect(url, timeout=timeout, wait_refused=None)),
                stack,
            )
        _clients[os.getpid(), url] = known
    return known[0]


def close_all() -> None:
    """End the clients of this process; for tests, and for a driver that plans by itself."""
    for key in [key for key in _clients if key[0] == os.getpid()]:
        _clients.pop(key)[1].close()


@contextmanager
def explained() -> Iterator[None]:
    """Raise faults that a user can mend as a `PipelineError`.

    `Unavailable` and its like pass unchanged: a command ends with another exit code for them.
    """
    try:
        yield
    except UnreadableBatch as error:
        raise PipelineError(
            f"a batch cannot be read: {error.why} (queue {error.queue} of topic {error.topic!r}, "
            f"offsets {error.offset} to {error.next_offset - 1})",
            f"begin after it, at offset {error.next_offset}, in a new query",
        ) from error
    except Rejected as error:
        said = str(error).partition("\n")[0]
        if error.reason is Reason.UNKNOWN_TOPIC:
            raise PipelineError(said, "`raftmq topic list` shows the existing topics") from error
        raise PipelineError(said, "the message names the refused value") from error
