"""An alert as a message, once.

| part | value |
|---|---|
| key | `rule/topic/group` |
| tag | `open` or `closed` |
| body | JSON: the fields of `rules.Alert`, minutes as ISO 8601, and `report` |

The report's name is a *claimed session* of the topic, and the alert's number its label: the claim
tells whether the alert is stored, and fences a process that is still about to send it. So an alert
is one message, wherever a process is killed.
"""

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import structs

from raftmq.errors import Reason, Rejected

from .rules import Alert

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient


def send(mq: "BlockingClient", topic: str, report: str, alert: Alert) -> None:
    """Send an alert, if it was not sent; stored on return. Alerts come by rising number.

    Raises:
        Unavailable, OutcomeUnknown: the alert may not be stored; send it again.
    """
    try:
        with mq.claimed_producer(topic, f"report-{report}", label=alert.number) as producer:
            if not producer.stored:
                producer.send(
                    json.dumps(as_json(alert) | {"report": report}).encode(),
                    key=f"{alert.rule}/{alert.topic}/{alert.group}",
                    tag=alert.state,
                )
    except Rejected as error:
        # A fenced alert is stored: a later alert is claimed only after this one was stored.
        if error.reason is not Reason.FENCED:
            raise


def as_json(alert: Alert) -> dict[str, Any]:
    """An alert as plain values."""
    found = structs.asdict(alert)
    return found | {name: iso(found[name]) for name in ("minute", "since")}


def iso(time_ms: int) -> str:
    """A time in milliseconds since 1970 as ISO 8601, to the second.

    >>> iso(1_763_800_000_000)
    '2025-11-22T08:26:40Z'
    """
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
