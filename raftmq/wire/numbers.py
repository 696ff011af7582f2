"""Numbers and lists of requests that have a range: those outside are refused when decoded.

`unpack` raises `Misfit`, which names the field and the bound, and the node refuses the request with
`bad_argument`. So such a number reaches no log, and such a list no handler. A node acts on a
request in one step of its event loop, where each entry of a list takes some microseconds; a client
that has more entries asks in parts.

Left out: numbers whose bounds are state, as the offsets of a queue; numbers and lists that the
machines refuse with a text of their own, as the length of a lease: logs may hold such requests
already, and all replicas must treat them alike; and lists of the nodes' own messages.
"""

from typing import Annotated, TypeVar

from msgspec import Meta

NUMBER_MAX = (1 << 63) - 1
"""The largest number that a client gives itself or its requests."""
NODE_MAX = (1 << 32) - 1
"""The largest number of a node: the low half of a member's id
(`raftmq.machine.catalog.replicas`)."""

DrawnNumber = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
"""The number that a client draws for itself: 1 to 2^63 - 1."""
SequenceNumber = Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
"""A number that only grows: up to 2^63 - 1. A number that begins with a clock may be negative: the
clock may show a time before 1970."""
NodeNumber = Annotated[int, Meta(ge=1, le=NODE_MAX)]
"""A node: 1 to 2^32 - 1."""
NodeNumberOrNone = Annotated[int, Meta(ge=0, le=NODE_MAX)]
"""A node; 0: none is named."""
Member = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
"""A member's id in a partition group: 1 to 2^63 - 1."""
Natural = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
"""A term, an index, or the number of a group: 0 to 2^63 - 1."""
Amount = Annotated[int, Meta(ge=0)]
"""A number of milliseconds or bytes: not negative."""

T = TypeVar("T")

LIST_MAX = 5_000
"""Entries of a list: a `Fetch` of this number of queues takes a node about 20 ms."""
Bounded = Annotated[list[T], Meta(max_length=LIST_MAX)]
"""A list of up to `LIST_MAX` entries."""
