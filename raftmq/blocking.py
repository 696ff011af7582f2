"""The client for plain code: the same names as the async one, without await.

`open` is loaded when first used, so that `connect` does not load a broker's modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from raftmq.client.blocking.client import (
    BlockingAdmin,
    BlockingClient,
    BlockingConsumer,
    BlockingProgress,
    connect,
)
from raftmq.client.blocking.order import BlockingResequencer
from raftmq.client.blocking.popping import (
    BlockingPopConsumer,
    BlockingPoppedMessage,
    BlockingPoppedMessages,
)
from raftmq.client.blocking.producer import (
    BlockingClaimedProducer,
    BlockingPending,
    BlockingPendingMany,
    BlockingProducer,
)

if TYPE_CHECKING:
    from raftmq.embedded.blocking import BlockingEmbedded
    from raftmq.embedded.blocking import open as open  # noqa: A004  # what users call it

__all__ = [
    "BlockingAdmin",
    "BlockingClaimedProducer",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingEmbedded",
    "BlockingPending",
    "BlockingPendingMany",
    "BlockingPopConsumer",
    "BlockingPoppedMessage",
    "BlockingPoppedMessages",
    "BlockingProducer",
    "BlockingProgress",
    "BlockingResequencer",
    "connect",
]


def __getattr__(name: str) -> object:
    # `open` is not in __all__: an import of all names must not hide Python's own.
    if name not in ("BlockingEmbedded", "open"):
        raise AttributeError(f"module 'raftmq.blocking' has no attribute {name!r}")
    value: object = getattr(import_module("raftmq.embedded.blocking"), name)
    globals()[name] = value
    return value
