"""The embedded queue: a node and a client in one process, without a port; and a checked mode.

Start reading at `opening` (what `raftmq.open` does).
"""

from .opening import Embedded, open  # noqa: A004  # what users call it

__all__ = ["Embedded", "open"]
