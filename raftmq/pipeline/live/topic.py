"""Closed windows as messages of a topic, each once, in the order in which they closed.

| of a message | is |
|---|---|
| key | the group's values joined by `/`: a group's windows keep their order; none without groups |
| body | JSON: `window_start`, `window_end` (ISO, UTC), the groups, the measures by their names |

The messages go through the sink's own task: a session named after the folder's store, with the step
as its label. A step that is sent again after a crash sends only its missing messages.
"""

import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from raftmq.pipeline.sink.options import Options
from raftmq.pipeline.sink.task import Work, write

from .board import Board
from .job import Publish
from .store import Final

if TYPE_CHECKING:
    import pyarrow as pa

    from raftmq.blocking import BlockingClient


def publisher(mq: "BlockingClient", topic: str, url: str, board: Board) -> Publish:
    """A function that sends closed windows of a board to a topic.

    The function raises the errors of `raftmq.pipeline.sink.task.write`.
    """

    def publish(name: str, step: int, rows: list[Final]) -> None:
        work = Work(f"live/{name}", 0, step)
        write(mq, work, Options(topic, url), [messages(rows, board)])

    return publish


def messages(rows: list[Final], board: Board) -> "pa.RecordBatch":
    """Groups of closed windows as the rows that the sink takes."""
    import pyarrow as pa

    keys = ["/".join(value or "" for value in row.group or ()) or None for row in rows]
    bodies = [json.dumps(_plain(row, board), allow_nan=False).encode() for row in rows]
    return pa.record_batch(
        {"key": pa.array(keys, pa.string()), "body": pa.array(bodies, pa.binary())}
    )


def _plain(row: Final, board: Board) -> dict[str, object]:
    finite = [value if math.isfinite(value) else None for value in row.values]
    return {
        "window_start": _moment(row.start),
        "window_end": _moment(row.start + board.window_ms * 1000),
        **dict(zip(board.groups, row.group or (), strict=True)),
        **dict(zip(board.measures, finite, strict=True)),
    }


def _moment(microseconds: int) -> str:
    moment = datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
