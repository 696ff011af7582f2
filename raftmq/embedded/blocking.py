"""`raftmq.blocking.open`: the embedded queue for plain code.

Two threads beside the application's: one for the node, one for the client's event loop.
"""

import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from raftmq.client.blocking.background import Background
from raftmq.client.blocking.client import BlockingClient

from .opening import Embedded, Tables
from .opening import open as open_async

if TYPE_CHECKING:
    from .checked import Checked


class BlockingEmbedded(BlockingClient):
    """See `raftmq.Embedded`. Made by `open`."""

    def check(self) -> "Checked":
        """See `Embedded.check`."""
        client = self._inner
        assert isinstance(client, Embedded)
        return self._loop.wait(client.check)


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
