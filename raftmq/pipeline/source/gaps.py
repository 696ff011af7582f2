"""Missing messages: an error, or rows of a Parquet table.

The table has one file a gap, named after the gap (`orders-0-120-180.parquet`), so a micro-batch
that is repeated adds no second row:

| column | type | meaning |
|---|---|---|
| topic | string | the topic |
| queue | int | the queue |
| start | bigint | the first missing offset |
| end | bigint | the offset after the last one |
| seen_at | timestamp | when it was noticed first |

A repeated micro-batch may find more missing than before: then the gaps overlap.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

from .offsets import Range


def report(gone: Iterable[Range], *, fails: bool, folder: str | None) -> None:
    """Report messages that retention took away before they were read. Durable on return.

    Args:
        gone: what is missing.
        fails: whether missing messages are an error.
        folder: the table's folder, which every worker sees; None: nothing is written.

    Raises:
        PipelineError: `fails`, and something is missing.
    """
    for each in gone:
        if fails:
            raise PipelineError(
                f"{each} were dropped by retention before they were read",
                "keep messages for longer; to go on without them set failOnDataLoss to false, and "
                "gaps to a folder for a table of the missing messages",
            )
        if folder is not None:
            _write(each, Path(folder))


def _write(gap: Range, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / f"{gap.topic}-{gap.queue}-{gap.start}-{gap.end}.parquet"
    # A micro-batch that is repeated has noted the gap before: its `seen_at` stays.
    if path.exists():
        return
    durable.make_folders(folder)
    table = pa.table(
        {
            "topic": [gap.topic],
            "queue": pa.array([gap.queue], pa.int32()),
            "start": [gap.start],
            "end": [gap.end],
            "seen_at": pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC")),
        }
    )
    with durable.writing(path) as unfinished:
        pq.write_table(table, unfinished)
