"""The rows that an earlier attempt has stored, as digests; and the rows that are missing.

An attempt that died has stored some of its rows. Spark brings the same rows again, but perhaps in
another order (after a shuffle it depends on which task was done first), so the number of stored
rows does not help. The new attempt reads the stored rows back, and takes them from its own rows as
a multiset: of a row that came twice, and is stored once, one is sent.

A row's digest is 16 bytes over key, tag, body and properties; a row from Spark and its message have
equal digests.

Memory: about 120 bytes a stored row; none if no row was stored, which is the usual case.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from raftmq.errors import Rejected, Unavailable
from raftmq.pipeline.errors import PipelineError
from raftmq.words import counted

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from raftmq.blocking import BlockingClient
    from raftmq.client import StoredMessages

_FETCH_MAX = 5_000


def digest(
    body: bytes, key: str | None, tag: str | None, props: Mapping[str, Any], more: object = None
) -> bytes:
    """16 bytes that identify a row by its content; `more` is content beside the message's."""
    present = sorted((name, value) for name, value in props.items() if value is not None)
    return blake2b(repr((key, tag, present, more, body)).encode(), digest_size=16).digest()


def digests_of(rows: "pa.RecordBatch") -> list[bytes]:
    """One digest a row, of a record batch as it comes from Spark."""
    columns = {name: rows.column(name).to_pylist() for name in rows.schema.names}
    count, nothing = rows.num_rows, [None] * rows.num_rows
    bodies = [body.encode() if isinstance(body, str) else body for body in columns["body"]]
    times = columns.get("delay", columns.get("deliver_at", nothing))
    return [
        digest(bodies[at], key, tag, dict(props or ()), time)
        for at, key, tag, props, time in zip(
            range(count),
            columns.get("key", nothing),
            columns.get("tag", nothing),
            columns.get("props", nothing),
            times,
            strict=True,
        )
    ]


def read_stored(
    mq: "BlockingClient",
    topic: str,
    producer: int,
    stored: "Mapping[int, StoredMessages]",
    timeout: float,
) -> Counter[bytes]:
    """Read back what a claimed producer's label has stored, as a multiset of digests.

    Raises:
        PipelineError: retention has taken a part of the messages.
        Unavailable: a leader does not answer.
    """
    found: Counter[bytes] = Counter()
    for queue, (count, origin) in stored.items():
        with mq.consumer(topic, queues=[queue], start=origin) as consumer:
            left = count
            while left:
                try:
                    fetched = consumer.fetch(_FETCH_MAX, wait=timeout)
                except Rejected as error:
                    what = f"{counted(count, 'row')} of this batch in queue {queue}"
                    message = f"some cannot be read of {what}"
                    fix = "start a new query: stored and missing rows can no longer be told apart"
                    raise PipelineError(f"{message}: {error}", fix) from error
                if not fetched:
                    raise Unavailable(f"queue {queue} of {topic!r} cannot be read back in time")
                for batch, start, stop, _ in fetched.slices:
                    # Others write to the queue, too; all of ours from here on has this label.
                    if batch.head.producer != producer:
                        continue
                    rows = batch.messages(start)[: min(stop - start, left)]
                    found.update(digest(row.body, row.key, row.tag, row.props) for row in rows)
                    left -= len(rows)
    return found


class Missing:
    """The rows of this attempt that are not stored yet."""

    def __init__(self, stored: Counter[bytes]) -> None:
        self._left = stored
        self.skipped = 0
        """Rows that were stored already."""

    def mask(self, rows: "pa.RecordBatch") -> "np.ndarray | None":
        """True for each row that is to be sent; None: all are, as no stored row is left."""
        import numpy as np

        if not self._left:
            return None
        wanted = np.fromiter(map(self._is_missing, digests_of(rows)), np.bool_, rows.num_rows)
        self.skipped += rows.num_rows - int(wanted.sum())
        return wanted

    def _is_missing(self, row: bytes) -> bool:
        count = self._left.get(row, 0)
        if count > 1:
            self._left[row] = count - 1
        elif count:
            del self._left[row]
        return not count

    def finish(self) -> None:
        """Check that this attempt had all stored rows; call it after the last row.

        Raises:
            PipelineError: rows are stored that this attempt did not have.
        """
        if self._left:
            raise other_rows(sum(self._left.values()))


def other_rows(count: int) -> PipelineError:
    """The error: an attempt lacks rows that an earlier one had."""
    return PipelineError(
        f"an earlier attempt stored {counted(count, 'row')} that this one does not have: the query "
        "does not give the same rows twice",
        "take out what changes from run to run (rand(), current_timestamp(), uuid()), or write "
        "the rows to a table first; then start a new query",
    )


def in_digest_order(batches: "Iterable[pa.RecordBatch]") -> "pa.RecordBatch":
    """The rows of several batches, at least one, in an order that depends on the rows alone."""
    import pyarrow as pa

    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    digests = digests_of(rows)
    order = sorted(range(rows.num_rows), key=digests.__getitem__)
    return rows.take(pa.array(order))
