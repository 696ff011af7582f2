"""A micro-batch becomes a version of the archive, once.

Offsets alone decide which rows are new, never the number of a batch: a batch that was committed and
comes again, because the driver died before Spark noted it, adds nothing; with a checkpoint that was
lost, or rolled back by a loss of power, each row is still archived once.

Invariants:
- A version continues each queue where the one before ended. If offsets between them are missing,
  there is an error and no version, unless the table of gaps has these offsets.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from raftmq.pipeline.errors import PipelineError

from .gaps import Gaps
from .manifest import Ends, File, Range, Version, append, changing, ends_after, now


def commit(
    archive: Path,
    files: Sequence[File],
    *,
    topics: dict[str, int],
    query: str | None = None,
    batch: int | None = None,
) -> Version | None:
    """Make files part of the archive, all or none; on return that is durable.

    Args:
        archive: its folder.
        files: whole and durable.
        topics: topic → its id, of those that are archived.
        query, batch: Spark's names of the query and batch that wrote them, for people.

    Returns:
        The new version; None: the archive had all rows already, or there are no files.

    Raises:
        PipelineError: the files don't continue the archive, a topic is another one of that name,
            or another driver has begun and removed the files. The archive is as it was.
    """
    if not files:
        return None
    with changing(archive) as before:
        check_topics(before, topics)
        if _is_repeated(before.ends, files):
            return None
        _check_continues(before.ends, files, Gaps(archive))
        _check_present(archive, files)
        version = replace(
            before,
            version=before.version + 1,
            is_whole=False,
            written=now(),
            query=query,
            batch=batch,
            topics=before.topics | topics,
            ends=ends_after(before.ends, files),
            files=tuple(files),
            retired=(),
        )
        append(archive, version)
    return version


def check_topics(version: Version, topics: dict[str, int]) -> None:
    """Refuse a topic that was deleted and created again: its offsets begin at 0.

    Raises:
        PipelineError: it names the topic.
    """
    for topic, number in topics.items():
        known = version.topics.get(topic, number)
        if known != number:
            raise PipelineError(
                f"topic {topic} is not the one in the archive: its id is {number}, was {known}",
                "archive it to another folder; its offsets have begun again",
            )


def ranges_of(files: Iterable[File]) -> dict[tuple[str, int], list[Range]]:
    """(Topic, queue) → its ranges in all these files, by their starts."""
    found: dict[tuple[str, int], list[Range]] = {}
    for file in files:
        for each in file.ranges:
            found.setdefault((file.topic, each.queue), []).append(each)
    for ranges in found.values():
        ranges.sort()
    return dict(sorted(found.items()))


def breaks(ranges: Sequence[Range], expected: int | None) -> Iterator[tuple[int, int]]:
    """Places where sorted ranges don't follow each other: (expected, start), a hole or an overlap.

    >>> list(breaks([Range(0, 2, 5), Range(0, 5, 7), Range(0, 9, 12), Range(0, 11, 20)], None))
    [(7, 9), (12, 11)]
    """
    for _, start, end in ranges:
        if expected is not None and start != expected:
            yield expected, start
        expected = max(end, expected or 0)


def _is_repeated(ends: Ends, files: Sequence[File]) -> bool:
    return all(
        each.end <= ends.get(file.topic, {}).get(each.queue, 0)
        for file in files
        for each in file.ranges
    )


def _check_continues(ends: Ends, files: Sequence[File], gaps: Gaps) -> None:
    for (topic, queue), ranges in ranges_of(files).items():
        for expected, start in breaks(ranges, ends.get(topic, {}).get(queue)):
            where = f"queue {queue} of {topic}"
            if start < expected:
                raise PipelineError(
                    f"offsets {start} to {expected} of {where} are archived already",
                    "another driver archives here: end one, and start the other again",
                )
            if not gaps.covers(topic, queue, expected, start):
                raise PipelineError(
                    f"offsets {expected} to {start} of {where} are neither archived nor here",
                    f"restore the newest file of {queue=} if the archive lost a manifest; "
                    "else archive to another folder",
                )


def _check_present(archive: Path, files: Sequence[File]) -> None:
    # The Java of a killed driver may still commit after the next driver has begun and removed the
    # files that no version named; `sweep` removes them under the same lock.
    for file in files:
        if not (archive / file.path).exists():
            raise PipelineError(
                f"{file.path} is gone before it was committed",
                "another driver archives here: leave it to that one",
            )
