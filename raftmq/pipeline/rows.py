"""The row of the pipeline: what the source yields, what archives hold, what jobs take as input.

| column | type | meaning |
|---|---|---|
| topic | string | the topic's name |
| queue | int | the queue's number in its topic, from 0 |
| offset | bigint | the message's offset in its queue, from 0 |
| key | string | its key; null: none |
| tag | string | its tag; null: none |
| body | binary | what was sent |
| props | map<string,string> | its properties as text, never null: see `raftmq.client.arrow` |
| created | timestamp | when it was made, by the producer's clock |
| timestamp | timestamp | when the leader stored it |

Timestamps are microseconds since 1970, UTC; the broker's own are milliseconds. A message's place
(topic, queue, offset) identifies one row, and the rows below a queue's end never change.

This module loads neither pyspark nor pyarrow.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {
    "topic": "string",
    "queue": "int",
    "offset": "bigint",
    "key": "string",
    "tag": "string",
    "body": "binary",
    "props": "map<string,string>",
    "created": "timestamp",
    "timestamp": "timestamp",
}
"""Column → its type in Spark's words, in order."""

PLACE = ("topic", "queue", "offset")
"""The columns that name one message."""


def ddl(columns: Iterable[str] = tuple(COLUMNS)) -> str:
    """These columns as Spark's schema, in the order of the row whatever the order here.

    >>> ddl(("offset", "queue"))
    'queue int, offset bigint'
    """
    wanted = set(columns)
    assert wanted <= set(COLUMNS), wanted
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name in wanted)


DDL = ddl()
"""The whole row as Spark's schema."""


def arrow_schema(columns: Iterable[str] = tuple(COLUMNS)) -> "pa.Schema":
    """These columns as an Arrow schema, as Spark makes it of `ddl(columns)`."""
    from raftmq.client.arrow import schema_of

    return schema_of(columns)
