"""Settings of producers and consumers that operators push: `raftmq config set topic orders ...`.

values of `client *`, `topic orders`, `client billing`  ->  `in_force(values...)`, later ones win
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

WEIGHTS = r"([1-9][0-9]{0,18}=(0(\.[0-9]{1,6})?|1(\.0{1,6})?)(,(?=[0-9])|$))*"
"""The form of `PushedProducer.weights`."""


class PushedProducer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What producers obey, in place of what the application has set."""

    linger_ms: Annotated[int, Meta(ge=0, le=60_000)] | None = None
    """Milliseconds to gather messages for a batch."""
    batch_bytes: Annotated[int, Meta(ge=1, le=32 * 1024 * 1024)] | None = None
    """A batch of this size goes out."""
    batch_messages: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    """A batch of this number of messages goes out."""
    is_paused: bool = False
    """True: nothing is sent; messages wait, and those whose time runs out fail as `Unavailable`."""
    weights: Annotated[str, Meta(pattern=f"^{WEIGHTS}$")] = ""
    """Weights of nodes for messages without a key: `3=0,5=0.5` sends none to queues that node 3
    leads, and half as many as otherwise to those of node 5. A node that is not named has 1."""

    def node_weights(self) -> dict[int, float]:
        """Node → its weight, of the nodes that are named.

        >>> PushedProducer(weights="3=0,5=0.5").node_weights()
        {3: 0.0, 5: 0.5}
        """
        pairs = re.findall(r"(\d+)=([\d.]+)", self.weights)
        return {int(node): float(weight) for node, weight in pairs}


class PushedConsumer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What consumers obey."""

    is_paused: bool = False
    """True: no message is fetched or handed out; the consumer keeps its place in its group."""


class Pushed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that operators push to a client about a topic."""

    producer: PushedProducer = PushedProducer()
    consumer: PushedConsumer = PushedConsumer()


def in_force(*layers: Mapping[str, Any]) -> Pushed:
    """The settings in force, given values by name (`producer.linger_ms`); later layers win.

    A value that this software does not know, or that it would refuse, is passed over: the settings
    may be of newer software.

    >>> in_force({"producer.linger_ms": 5}, {"producer.linger_ms": 9, "producer.later": 1}).producer
    PushedProducer(linger_ms=9, batch_bytes=None, batch_messages=None, is_paused=False, weights='')
    """
    tables: dict[str, dict[str, Any]] = {table: {} for table in Pushed.__struct_fields__}
    for layer in layers:
        for name, value in layer.items():
            table, _, field = name.partition(".")
            try:
                msgspec.convert({table: {field: value}}, Pushed)
            except msgspec.ValidationError:
                continue
            tables[table][field] = value
    return msgspec.convert(tables, Pushed)
