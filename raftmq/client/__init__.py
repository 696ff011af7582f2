"""The client: producer, consumer, admin; on trio and asyncio through anyio, and a blocking face.

Start reading at `client` (what `connect` gives), then `producer` and `consumer` (the public faces),
`lane` (how batches of one queue keep their order through every fault), `fetching` (how a consumer
reads ahead), `router` (who leads what) and `connection` (one node).
"""

from .admin import (
    Admin,
    ConsumerGroup,
    GroupOffset,
    OffsetChange,
    QueueDescription,
    TopicDescription,
    TopicInfo,
)
from .client import Client, connect
from .consumer import Consumer
from .message import Message, Messages, format_id, parse_id
from .parcel import PendingSend
from .producer import Producer
from .receipts import Outgoing, PendingMany, Receipt, SentMany, SentRange, SomeUnsent
from .subscriptions import Subscription

__all__ = [
    "Admin",
    "Client",
    "Consumer",
    "ConsumerGroup",
    "GroupOffset",
    "Message",
    "Messages",
    "OffsetChange",
    "Outgoing",
    "PendingMany",
    "PendingSend",
    "Producer",
    "QueueDescription",
    "Receipt",
    "SentMany",
    "SentRange",
    "SomeUnsent",
    "Subscription",
    "TopicDescription",
    "TopicInfo",
    "connect",
    "format_id",
    "parse_id",
]
