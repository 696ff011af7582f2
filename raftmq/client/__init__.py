"""The client: producer, consumer, admin; on trio and asyncio through anyio, and a blocking face.

Start reading at `client` (the object that `connect` of `connecting` opens), then `options` and
`message`.

| folder | holds |
|---|---|
| `produce` | messages on their way into queues, transactions and delays included |
| `consume` | consumers that read by offset |
| `pop` | consumers that pop: leases and settlement |
| `order` | the order of a sender over several queues: stamps, and a receiver that restores it |
| `admin` | topics, consumer groups, nodes, traces |
| `checked` | the checked mode: a witness of the client's calls |
| `routing` | the leaders of partition groups, and one connection a node |
| `blocking` | the client without await |
"""

from raftmq.batch import Compression
from raftmq.client.admin.access import Access
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.consumer_groups import GroupAttachment, GroupSettings
from raftmq.client.admin.dead_letters import Backlog, DeadLetter
from raftmq.client.admin.descriptions import (
    ConsumerGroup,
    GroupOffset,
    OffsetChange,
    QueueDescription,
    TopicDescription,
    TopicInfo,
)
from raftmq.client.admin.directory import Clients, Directory, Lease
from raftmq.client.admin.events import Events
from raftmq.client.admin.settings import Difference, Settings
from raftmq.client.admin.subscriptions import Subscription
from raftmq.client.admin.traces import Journey, MessageEvent, Trace
from raftmq.client.consume.consumer import Consumer
from raftmq.client.consume.progress import Progress
from raftmq.client.order.resequencer import Resequencer, ResequencerStatistics
from raftmq.client.order.sequencer import Sequencer
from raftmq.client.pop.claims import HeldClaim
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.popped import (
    LeasedMessage,
    LeasedMessages,
    PoppedMessage,
    PoppedMessages,
)
from raftmq.client.pop.schedules import exponential
from raftmq.client.pop.tally import Fenced, Settlement
from raftmq.client.produce.claimed import ClaimedProducer, StoredMessages
from raftmq.client.produce.producer import Producer
from raftmq.client.produce.producer_batch import PendingMany, PendingSend
from raftmq.client.produce.receipts import (
    Outgoing,
    Receipt,
    SentMany,
    SentRange,
    SomeUnsent,
)
from raftmq.client.produce.settings import ProducerStatistics
from raftmq.client.produce.transactions import OpenTransaction, Transaction

from .client import Client
from .connecting import connect
from .login import Login
from .message import Message, MessageColumns, Messages, format_id, parse_id

__all__ = [
    "Access",
    "Admin",
    "Backlog",
    "ClaimedProducer",
    "Client",
    "Clients",
    "Compression",
    "Consumer",
    "ConsumerGroup",
    "DeadLetter",
    "Difference",
    "Directory",
    "Events",
    "Fenced",
    "GroupAttachment",
    "GroupOffset",
    "GroupSettings",
    "HeldClaim",
    "Journey",
    "Lease",
    "LeasedMessage",
    "LeasedMessages",
    "Login",
    "Message",
    "MessageColumns",
    "MessageEvent",
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
    "ProducerStatistics",
    "Progress",
    "QueueDescription",
    "Receipt",
    "Resequencer",
    "ResequencerStatistics",
    "SentMany",
    "SentRange",
    "Sequencer",
    "Settings",
    "Settlement",
    "SomeUnsent",
    "StoredMessages",
    "Subscription",
    "TopicDescription",
    "TopicInfo",
    "Trace",
    "Transaction",
    "connect",
    "exponential",
    "format_id",
    "parse_id",
]
