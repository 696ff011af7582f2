"""Reading one range: from a leader into record batches, in a worker of Spark.

A consumer fetches ahead while Spark takes the messages that came. The consumer follows a change of
leader by itself; its messages come without gap or repeat, and reading stops exactly at the range's
end.

Record batches have up to `ROWS_MAX` rows, and about `BYTES_MAX` bytes: Spark reads smaller batches
at half the rate, and larger ones take memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from raftmq.client.message import QUEUE_BITS, Messages
from raftmq.client.slices import Slice
from raftmq.errors import Reason, Rejected, Unavailable
from raftmq.filters import Filter
from raftmq.filters import compile as compile_filter
from raftmq.pipeline.errors import PipelineError

from .connection import client, explained
from .gaps import report
from .offsets import Range

if TYPE_CHECKING:
    import pyarrow as pa

    from raftmq.blocking import BlockingClient, BlockingConsumer

ROWS_MAX = 65_536
"""Rows in a record batch."""
BYTES_MAX = 8 * 1024 * 1024
"""Bytes of bodies in a record batch, about; a body that is larger stands alone in its batch."""
WAIT_SECONDS = 1.0
"""How long to wait for messages that exist before the cluster is asked about them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How ranges are read; it travels to the workers."""

    url: str
    """The cluster."""
    timeout: float
    """Seconds without a message until the read fails as `Unavailable`."""
    columns: tuple[str, ...]
    """The columns, in the order in which Spark wants them."""
    filter: str | None
    """Tags or SQL that select messages; None: all messages."""
    fails_on_loss: bool
    """Whether messages that are gone are an error."""
    gaps: str | None
    """The folder of the table of gaps."""

    def read(
        self, wanted: Range, keep: "Callable[[pa.RecordBatch], pa.RecordBatch] | None" = None
    ) -> "Iterator[pa.RecordBatch]":
        """The messages of a range, in order; `keep` leaves out rows.

        Raises:
            PipelineError: messages are gone, cannot be read, or the topic is another one.
            Unavailable: nothing came for `timeout` seconds.
        """
        matching = compile_filter(self.filter) if self.filter is not None else None
        for slices in self._slices(wanted):
            with explained():
                rows = Messages(slices, wanted.topic).to_arrow(self.columns)
            if matching is not None:
                rows = _matching(rows, slices, matching)
            if keep is not None:
                rows = keep(rows)
            # Arrow's order is the row's; a reader may want another one.
            yield from pieces(rows.select(list(self.columns)))

    def _slices(self, wanted: Range) -> Iterator[list[Slice]]:
        mq = client(self.url, self.timeout)
        with explained():
            consumer = mq.consumer(wanted.topic, queues=(wanted.queue,), start=wanted.start)
            with consumer:
                yield from _Range(self, wanted, mq, consumer).batches()


class _Range:
    """A range that is being read."""

    def __init__(
        self,
        reading: Reading,
        wanted: Range,
        mq: "BlockingClient",
        consumer: "BlockingConsumer",
    ) -> None:
        self._reading = reading
        self._wanted = wanted
        self._mq = mq
        self._consumer = consumer
        self._at = wanted.start
        self._heard = monotonic()

    def batches(self) -> Iterator[list[Slice]]:
        """Slices for one record batch after the other."""
        while self._at < self._wanted.end:
            slices: list[Slice] = []
            rows = size = 0
            while rows < ROWS_MAX and size < BYTES_MAX and self._at < self._wanted.end:
                for part in self._fetch(ROWS_MAX - rows):
                    slices.append(part)
                    rows += part.stop - part.start
                    size += part.batch.head.body_bytes
            if slices:
                yield slices

    def _fetch(self, rows_max: int) -> list[Slice]:
        """The next messages of the range; empty if none came, or retention took some away."""
        count = min(rows_max, self._wanted.end - self._at)
        try:
            slices = self._consumer.fetch(count, wait=WAIT_SECONDS).slices
        except Rejected as error:
            if error.reason is not Reason.OFFSET_OUT_OF_RANGE:
                raise
            self._ask(error)
            return []
        if not slices:
            self._ask(None)
            return []
        if slices[0].queue_number >> QUEUE_BITS != self._wanted.topic_id:
            raise self._is_another()
        self._heard = monotonic()
        self._at = slices[-1].batch.base_offset + slices[-1].stop
        return slices

    def _ask(self, error: Rejected | None) -> None:
        """Ask the cluster why no message came: a leader may be new; messages may be gone."""
        wanted = self._wanted
        found = self._mq.admin.describe_topic(wanted.topic)
        if found.id != wanted.topic_id:
            raise self._is_another()
        earliest = found.queues[wanted.queue].earliest
        if earliest > self._at:
            gone = wanted._replace(start=self._at, end=min(earliest, wanted.end))
            reading = self._reading
            report([gone], fails=reading.fails_on_loss, folder=reading.gaps)
            self._at = gone.end
            self._heard = monotonic()
        elif monotonic() - self._heard > self._reading.timeout:
            why = f": {error}" if error is not None else ""
            raise Unavailable(f"{wanted}: nothing came for {self._reading.timeout:g} s{why}")
        if error is not None and self._at < wanted.end:
            self._consumer.seek(queue=wanted.queue, offset=self._at)

    def _is_another(self) -> PipelineError:
        message = f"topic {self._wanted.topic!r} was deleted and created again while it was read"
        return PipelineError(message, "begin again with another checkpoint and output")


def _matching(rows: "pa.RecordBatch", slices: list[Slice], matching: Filter) -> "pa.RecordBatch":
    import numpy as np
    import pyarrow as pa

    # A long batch comes in several slices; the filter runs over each batch once.
    masks = {}
    for part in slices:
        if id(part.batch) not in masks:
            masks[id(part.batch)] = matching.mask(part.batch)
    mask = np.concatenate([masks[id(part.batch)][part.start : part.stop] for part in slices])
    return rows.filter(pa.array(mask))


def pieces(rows: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
    """The same rows in record batches of about `BYTES_MAX`; none if there are no rows."""
    if not rows.num_rows:
        return
    count = -(-rows.nbytes // (2 * BYTES_MAX))
    step = -(-rows.num_rows // count)
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)
