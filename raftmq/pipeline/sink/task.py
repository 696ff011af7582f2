"""One task of a write: claims its session, finds out which rows are stored, sends the rest.

    claim a part of the write                              refused if it had other parts before
    claim (session of the partition, label of the batch)   from here on no other attempt can write
    read back what the label has stored                     mostly nothing: then nothing is read
    for each 32,768 rows or 8 MiB: drop what is stored, put the rest
    flush                                                   all is on the disks of a majority

| what happens | then |
|---|---|
| the task dies anywhere | the next attempt claims, reads back, and sends what is missing |
| it only seems dead, and goes on | it is fenced: its next batch of messages is refused |
| Spark loses the batch's commit | the batch runs again under the same label: nothing is missing |
| an older driver writes an older batch | its label is over: it is refused |
| a named write runs again in another number of partitions | no task stores anything |
| a batch of a stream does | the driver notices before it commits, see *Partitions* |

The label of a stream is Spark's batch id plus one; the label of a batch write is one. The session's
name holds what survives a restart: the query's id, or the write's id, and the partition.

*Partitions.* A row is stored once because its partition knows what it has stored. If the same rows
are cut into other partitions, a row that one has stored comes in another, which would store it
again. The task of a partition that lacks rows which it had before fails; a partition that no longer
exists has no task, so the cluster remembers the highest partition that any try of a batch has
begun. Spark gives a task no number of partitions. For a named write the option `partitions` gives
it, and a claim with another number is refused. For a stream the driver counts the tasks when all
are done: if an earlier try had more, rows are perhaps stored twice, and the batch fails.

*Rows for later* have no place in their queue until they fall due, so they cannot be read back. They
go out at the end of the task, under a session of their own, in the order of their digests: so the
number of stored rows identifies them, in whatever order Spark brings the rows.

Invariants:
- A row of a batch is stored once, if its query gives the same rows in the same partitions.
- The task returns when all its rows are on the disks of a majority.
- Which session a row belongs to does not depend on the time of day.

Left out: all or nothing for readers. Readers see messages as they are stored, also those of a batch
that fails; Kafka's sink does the same, and promises at least once.

Sources: apache/paimon 9666 (a user for each query id and batch id); KIP-98 for fencing.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from raftmq.client import Compression
from raftmq.errors import BadRow, Reason, Rejected
from raftmq.pipeline.errors import PipelineError
from raftmq.words import counted

from .columns import divided, with_times
from .options import Options
from .stored import Missing, in_digest_order, other_rows, read_stored

if TYPE_CHECKING:
    import pyarrow as pa

    from raftmq.blocking import BlockingClaimedProducer, BlockingClient

CHUNK_ROWS = 32_768
"""Rows that are put at once: with 8 queues they make batches of 4,096 messages."""
CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes, over all columns, that are put at once."""
LATER_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of rows for later that a task holds, at most; these rows wait for the task's end."""


@dataclass(frozen=True, slots=True)
class Work:
    """The piece of a write that one task does."""

    name: str
    """The id of the query or the write, equal in every attempt and after every restart."""
    partition: int
    """Spark's number of the partition."""
    label: int
    """The label of the batch; it grows from batch to batch."""
    is_cut_once: bool = True
    """True if all tries of this label have the same partitions, as those of one Spark job have."""

    @property
    def session(self) -> str:
        """The name of the producer's session."""
        return f"spark/{self.name}/{self.partition}"

    def unkeyed(self, queues: int) -> int:
        """The queue of rows that name none and have no key."""
        return (self.partition + self.label) % queues


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task."""

    rows: int
    """Rows that came."""
    skipped: int
    """Rows of `rows` that an earlier attempt had stored."""
    begun: int = 0
    """The highest number of partitions known of all tries of the batch; 0: not looked up."""


def write(
    mq: "BlockingClient", work: Work, options: Options, batches: "Iterable[pa.RecordBatch]"
) -> Written:
    """Store the rows that Spark gives to a task; see above.

    Raises:
        PipelineError: a row cannot be sent; rows are not those of an earlier attempt; another
            attempt writes the same partition; the topic is not there.
        Unavailable, OutcomeUnknown: the cluster did not answer in time. The next attempt goes on.
    """
    rows = _Rows(batches)
    later: list[pa.RecordBatch] = []
    timeout = options.timeout
    begun = 0
    if options.write_id and (work.is_cut_once or not options.partitions):
        raise PipelineError(
            "a named write does not say how many partitions it has", "give option partitions"
        )
    with _explained(options.topic, work):
        # The part is claimed before a row is stored, so later tries know all partitions with rows.
        if not work.is_cut_once:
            name, part = f"spark/{work.name}", work.partition + 1
            begun = mq.claim_part(
                options.topic, name, label=work.label, part=part, parts=options.partitions
            )
        with _claim(mq, options, work.session, work.label) as producer:
            stored = read_stored(mq, options.topic, producer.id, producer.stored, timeout)
            missing = Missing(stored)
            for chunk in rows:
                _put(producer, work, rows, chunk, missing, later, timeout)
            producer.flush(timeout=timeout)
        skipped = missing.skipped
        missing.finish()
        if rows.has_times:
            skipped += _write_later(mq, work, options, later)
    return Written(rows.count, skipped, begun)


def check_partitions(written: "Sequence[Written]", said: int) -> None:
    """Compare the tasks of a batch with its partitions; `said`: the option, 0 for a stream.

    Raises:
        PipelineError: an earlier try had partitions that this one lacks, or the option is wrong.
    """
    count = len(written)
    begun = max((each.begun for each in written), default=0)
    if begun > count:
        message = (
            f"an earlier try of this batch had {begun} partitions or more, and this one has {count}"
            ": rows that it stored may be stored a second time"
        )
        fix = (
            "compare the topic with the rows; do not change what partitions them: minPartitions, "
            "cores, shuffles"
        )
        raise PipelineError(message, fix)
    if said and said != count:
        message = f"option partitions says {said}, and the rows have {count} partitions"
        fix = f"rows.repartition({said}, 'key') before the write, and another writeId"
        raise PipelineError(message, fix)


def _put(
    producer: "BlockingClaimedProducer",
    work: Work,
    rows: "_Rows",
    chunk: "pa.RecordBatch",
    missing: Missing,
    later: "list[pa.RecordBatch]",
    timeout: float,
) -> None:
    import numpy as np
    import pyarrow as pa

    parts = divided(chunk)
    if parts.later is not None:
        later.append(parts.later)
        if sum(part.nbytes for part in later) > LATER_BYTES_MAX:
            message = f"a task has more than {LATER_BYTES_MAX >> 20} MiB of rows with a delay"
            raise PipelineError(message, "cut the rows into more partitions: df.repartition(n)")
    wanted = missing.mask(parts.at_once)
    positions = parts.positions
    sent = parts.at_once
    if wanted is not None:
        sent = sent.filter(pa.array(wanted))
        kept = np.flatnonzero(wanted)
        positions = kept if positions is None else positions[kept]
    try:
        producer.put_arrow(sent, unkeyed=work.unkeyed(producer.queues), timeout=timeout)
    except BadRow as error:
        place = error.row if positions is None else int(positions[error.row])
        raise rows.bad(place, error, work) from error


def _write_later(
    mq: "BlockingClient", work: Work, options: Options, later: "list[pa.RecordBatch]"
) -> int:
    """Store the rows that are for later; returns how many of them were stored already."""
    session = f"{work.session}/later"
    # Without rows for later the claim still finds rows that an earlier attempt has stored.
    with _claim(mq, options, session, work.label) as producer:
        stored = {queue: stored.count for queue, stored in producer.stored.items()}
        skipped, count = sum(stored.values()), sum(part.num_rows for part in later)
        taken = 0
        if later:
            _refuse_if_grown(mq, options.topic, work, session, producer.queues, skipped)
            rows = with_times(in_digest_order(later), int(time() * 1000))
            unkeyed = work.unkeyed(producer.queues)
            try:
                taken = producer.put_arrow(
                    rows, unkeyed=unkeyed, skip=stored, timeout=options.timeout
                )
            except BadRow as error:
                message = f"a row with a delay in partition {work.partition} cannot be sent"
                fix = "leave it out, or make it smaller; the rows before it are stored"
                raise PipelineError(f"{message}: {error.why}", fix) from error
        producer.flush(timeout=options.timeout)
    if count - taken < skipped:
        raise other_rows(skipped - count + taken)
    return skipped


def _refuse_if_grown(
    mq: "BlockingClient", topic: str, work: Work, session: str, queues: int, stored: int
) -> None:
    """Refuse an attempt with other queues than the attempts that stored rows.

    Rows are skipped by their count in each queue, so all attempts that store rows must have the
    same queues. The claim of a number of queues has part 2 once an attempt with that number began
    with nothing stored.
    """
    name = f"{session}/queues/{queues}"
    # An attempt that stored nothing leaves nothing to skip, so its queues do not matter.
    begun = mq.claim_part(topic, name, label=work.label, part=1 if stored else 2, parts=0)
    if begun < 2:
        message = (
            f"topic {topic!r} got queues since an earlier attempt stored "
            f"{counted(stored, 'row')} with a delay: its rows cannot be told from those that are "
            "missing; nothing was stored"
        )
        fix = "compare the topic with the batch's rows once they fell due; start a new query"
        raise PipelineError(message, fix)


def _claim(
    mq: "BlockingClient", options: Options, session: str, label: int
) -> "BlockingClaimedProducer":
    compression = Compression(options.compression)
    return mq.claimed_producer(options.topic, session, label=label, compression=compression)


@contextmanager
def _explained(topic: str, work: Work) -> Iterator[None]:
    """Raise faults that a user can mend as a `PipelineError`."""
    try:
        yield
    except Rejected as error:
        match error.reason:
            case Reason.UNKNOWN_TOPIC:
                message, fix = f"there is no topic {topic!r}", f"raftmq topic create {topic}"
            case Reason.FENCED:
                message = f"partition {work.partition} is written by another driver: {error}"
                fix = "let one driver run a query; this attempt has stored nothing since"
            case Reason.UNKNOWN_PRODUCER:
                message = f"the brokers have forgotten the rows this batch stored: {error}"
                fix = "compare the topic with the batch's rows before it is run again"
            case Reason.OTHER_PARTS:
                message = f"{error}: rows lie in other partitions than before; nothing was stored"
                fix = "run it with the partitions it had first, as rows.repartition(8, 'key') does"
            case _:
                message, fix = str(error), "the message names the refused value"
        raise PipelineError(message.rstrip("."), fix) from error


class _Rows:
    """The rows that Spark brings, in chunks, counted."""

    def __init__(self, batches: "Iterable[pa.RecordBatch]") -> None:
        self._batches = batches
        self.count = 0
        """Rows of all chunks that are done."""
        self.has_times = False
        """True if rows may be for later."""

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        gathered: list[pa.RecordBatch] = []
        for batch in self._batches:
            self.has_times |= bool({"delay", "deliver_at"} & set(batch.schema.names))
            gathered.append(batch)
            rows = sum(each.num_rows for each in gathered)
            if rows >= CHUNK_ROWS or sum(each.nbytes for each in gathered) >= CHUNK_BYTES:
                yield from self._joined(gathered)
                gathered = []
        yield from self._joined(gathered)

    def _joined(self, gathered: "list[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        if not sum(batch.num_rows for batch in gathered):
            return
        for chunk in pa.Table.from_batches(gathered).combine_chunks().to_batches():
            yield chunk
            self.count += chunk.num_rows

    def bad(self, place: int, error: BadRow, work: Work) -> PipelineError:
        """The error: a row of the present chunk cannot be sent."""
        before = f"rows 0 to {self.count - 1} of it are" if self.count else "none of its rows is"
        return PipelineError(
            f"row {self.count + place} of partition {work.partition} cannot be sent: {error.why}; "
            f"{before} stored",
            "leave such rows out, as with df.where('body is not null'), and run it again",
        )
