"""`raftmq.blocking.open`: the embedded queue for plain code.

Two threads beside the application's: one for the node, one for the client's event loop.
"""

import os
from contextlib import AbstractContextManager

from raftmq.client.blocking.background import Background
from raftmq.client.blocking.client import BlockingClient
from raftmq.client.blocking.face import waits

from .opening import Embedded, Tables
from .opening import open as open_async


class BlockingEmbedded(BlockingClient):
    """See `raftmq.Embedded`. Made by `open`."""

    check = waits(Embedded.check)


def open(  # noqa: A001  # what users call it
    data: str | os.PathLike[str],
    *,
    timeout: float = 30.0,
    check: bool = False,
    settings: Tables | None = None,
    backend: str = "trio",
) -> AbstractContextManager[BlockingEmbedded]:
    """`with raftmq.blocking.open("data/") as mq:` opens a durable queue in this process.

    See `raftmq.open`, also for the errors.

    Args:
        data: the folder; made if there is none.
        timeout: seconds; the default of every call, and for opening.
        check: keep a history for `check`.
        settings: tables that replace defaults.
        backend: the event loop of the client's thread, `"trio"` or `"asyncio"`.
    """
    opening = open_async(data, timeout=timeout, check=check, settings=settings)
    return Background(opening, backend, BlockingEmbedded)
