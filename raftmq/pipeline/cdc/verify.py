"""Compares the rebuilt table with the database's, by digests at one place in the order of commits.

The database is read in one consistent snapshot, whose place is known. A capture brings the topic up
to there. Then the last version and the changes after it, up to that place and no further, make the
other side, which is not written. So other processes may go on writing, and both sides are of the
same place: if they differ, a change was lost, doubled or altered, and the rows that differ are
named.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftmq.pipeline.errors import PipelineError

from .change import Op, Place
from .change_capture import capture
from .differences import Differences, differing, noting
from .digest import Digest, digest_in_spark, summed
from .rebuild import fold, plan, read
from .source import Source
from .tail import read_tail, tail_at
from .versions import Version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient

LOOK_SECONDS = 0.5
"""Time between two looks at the messages of another capture."""


class SourceDigest(NamedTuple):
    """The digest of the table in the database."""

    place: Place
    """All changes up to its position are in it, and no others."""
    digest: Digest
    """The digest of all rows."""
    noted: Path
    """The rows' keys and digests, see `differences.noting`."""


class Verified(NamedTuple):
    """The result of a comparison."""

    rebuilt: Digest
    """The digest of the rebuilt table, at the same place."""
    differences: Differences | None
    """The rows that differ; None: the digests are equal."""


def source_digest(source: Source, noted: Path) -> SourceDigest:
    """Read the whole table, and note its rows."""
    with source.snapshot(is_first=False) as (place, rows):
        return SourceDigest(place, summed(noting(rows, source.table, noted)), noted)


def verify(
    spark: "SparkSession",
    mq: "BlockingClient",
    source: Source,
    topic: str,
    folder: Path,
    found: SourceDigest,
    *,
    url: str | None = None,
    wait_seconds: float = 60.0,
) -> Verified:
    """Compare the rebuilt table at the place of `found` with it: equal, or a promise is broken.

    Raises:
        PipelineError: another capture is running and does not get as far in `wait_seconds`, or as
            `capture` and `plan`.
    """
    wanted = Place(found.place.position + 1, found.place.lsn)
    _catch_up(mq, source, topic, wanted, wait_seconds)
    planned = plan(mq, topic, folder)
    if planned.base is not None and _is_later(mq, planned.base, wanted):
        raise PipelineError(
            f"{folder} was rebuilt while the table was read", "verify again, without rebuilding"
        )
    messages = read(spark, topic, planned, url)
    folded = fold(messages, topic, planned, folder, until=found.place.position)
    rebuilt = digest_in_spark(folded.rows, folded.table.columns)
    if rebuilt == found.digest:
        return Verified(rebuilt, None)
    return Verified(rebuilt, differing(found.noted, folded.rows, folded.table))


def _is_later(mq: "BlockingClient", version: Version, wanted: Place) -> bool:
    """Whether a version has changes that are not before this place."""
    last = tail_at(mq, version.topic, version.end - 1)
    return last.position >= wanted.position and last.op is not Op.MARK


def _catch_up(
    mq: "BlockingClient", source: Source, topic: str, wanted: Place, wait_seconds: float
) -> None:
    """Have the topic contain all before this place: by a capture of our own, or by another's."""
    deadline = time.monotonic() + wait_seconds
    while True:
        tail = read_tail(mq, topic)
        if tail is not None and tail.is_last and tail.position >= wanted.position:
            return
        try:
            # The stream has to reach the place even if nothing is written now.
            source.now()
            for _ in capture(mq, source, topic, until=wanted):
                pass
            return
        except PipelineError as error:
            if "is running" not in error.message or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_SECONDS)
