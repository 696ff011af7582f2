"""The client: producer, consumer, admin; on trio and asyncio through anyio, and a blocking face.

Start reading at `client` (what `connect` gives), then `producer`, `consumer` and `popping` (faces),
`lane` (how batches of one queue keep their order through every fault), `fetching` (how a consumer
reads ahead), `router` (who leads what) and `connection` (one node).
"""

from raftmq.batch import Compression

from .admin import Admin
from .claimed import ClaimedProducer, StoredMessages
from .claims import HeldClaim
from .client import Client, connect
from .consumer import Consumer
from .consumer_groups import GroupAttachment, GroupSettings
from .dead_letters import Backlog, DeadLetter
from .descriptions import (
    ConsumerGroup,
    GroupOffset,
    OffsetChange,
    QueueDescription,
    TopicDescription,
    TopicInfo,
)
from .events import Events
from .message import Message, MessageColumns, Messages, format_id, parse_id
from .parcel import PendingSend
from .popped import (
    Fenced,
    LeasedMessage,
    LeasedMessages,
    PoppedMessage,
    PoppedMessages,
    Settlement,
)
from .popping import PopConsumer
from .producer import Producer
from .progress import Progress
from .receipts import Outgoing, PendingMany, Receipt, SentMany, SentRange, SomeUnsent
from .schedules import exponential
from .subscriptions import Subscription
from .tracing import Journey, Touch, Trace
from .transactions import OpenTransaction, Transaction

__all__ = [
    "Admin",
    "Backlog",
    "ClaimedProducer",
    "Client",
    "Compression",
    "Consumer",
    "ConsumerGroup",
    "DeadLetter",
    "Events",
    "Fenced",
    "GroupAttachment",
    "GroupOffset",
    "GroupSettings",
    "HeldClaim",
    "Journey",
    "LeasedMessage",
    "LeasedMessages",
    "Message",
    "MessageColumns",
    "Messages",
    "OffsetChange",
    "OpenTransaction",
    "Outgoing",
    "PendingMany",
    "PendingSend",
    "PopConsumer",
    "PoppedMessage",
    "PoppedMessages",
    "Producer",
    "Progress",
    "QueueDescription",
    "Receipt",
    "SentMany",
    "SentRange",
    "Settlement",
    "SomeUnsent",
    "StoredMessages",
    "Subscription",
    "TopicDescription",
    "TopicInfo",
    "Touch",
    "Trace",
    "Transaction",
    "connect",
    "exponential",
    "format_id",
    "parse_id",
]
