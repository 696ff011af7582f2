"""The client for plain code: the same names as the async one, without await."""

from .client.blocking import (
    BlockingAdmin,
    BlockingClient,
    BlockingConsumer,
    BlockingPending,
    BlockingPendingMany,
    BlockingProducer,
    connect,
)

__all__ = [
    "BlockingAdmin",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingPending",
    "BlockingPendingMany",
    "BlockingProducer",
    "connect",
]
