"""A run: reads events of the logs since the last run, then builds the hours that got some.

    for step in running.run(spark, folder, url=url): show(step)

Each step is committed before `run` yields it; a run that is killed loses only the step under way.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftmq import blocking
from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.source.connection import explained
from raftmq.pipeline.source.events import Span, bounds, limited, spans

from .event_ingest import gather
from .folder import State, load, remove_strays, save, writing
from .hour_build import build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS_MAX = 2_000_000
"""Records of the logs between two commits."""
HOURS_MAX = 24
"""Hours built between two commits."""
TIMEOUT = 60.0
"""Seconds without a leader until an error."""


class Plan(NamedTuple):
    """The work of a run that began now."""

    cluster: str
    """The cluster's id."""
    spans: list[Span]
    """The records to read."""
    lost: list[Span]
    """Records that retention took unread."""
    stale: list[str]
    """Hours to be built even if there is no new record to read."""


class Step(NamedTuple):
    """A step that is done and committed."""

    records: int
    """Records of the logs that were read."""
    events: int
    """Rows that were written."""
    hours: tuple[str, ...]
    """Hours that were built."""


def plan(folder: Path, url: str, *, skips_lost: bool = False) -> Plan:
    """The work of the next run; changes nothing.

    Raises:
        PipelineError: retention took records unread, and `skips_lost` is false; or it is another
            cluster than before.
        Unavailable: a leader was not found in time.
    """
    state = load(folder)
    return _plan(state, url, skips_lost=skips_lost)


def _plan(state: State, url: str, *, skips_lost: bool) -> Plan:
    # This connection is closed at once: an open one would keep the process from ending.
    with explained(), blocking.connect(url, timeout=TIMEOUT) as mq:
        cluster, held = mq.admin.cluster().cluster, bounds(mq)
    if state.cluster not in ("", cluster):
        message = f"this is cluster {cluster!r}, and the trace is of {state.cluster!r}"
        raise PipelineError(message, "name another folder, or that cluster")
    start = {int(group): index for group, index in state.next.items()}
    end = {group: max(span.end, start.get(group, 0)) for group, span in held.items()}
    wanted = spans(held, start, end, fails_on_loss=not skips_lost)
    gone = [
        Span(group, index, held[group].start)
        for group, index in sorted(start.items())
        if group in held and index < held[group].start
    ]
    return Plan(cluster, wanted, gone, list(state.stale))


def run(
    spark: "SparkSession",
    folder: Path,
    *,
    url: str,
    skips_lost: bool = False,
    on_plan: Callable[[Plan], None] = lambda _: None,
) -> Iterator[Step]:
    """Read the records since the last run, and build the hours that they concern.

    Args:
        spark: the session that does the work.
        folder: the trace's, on a disk that all workers share; it is made if it is missing.
        url: the cluster.
        skips_lost: go on where retention took records unread; what was lost is kept in the state.
        on_plan: called with the plan before the work begins.

    Raises:
        PipelineError: retention took records unread; another process writes into the folder.
        Unavailable: a leader was not found in time.
    """
    folder = folder.absolute()
    with writing(folder):
        state = load(folder)
        remove_strays(folder, state)
        found = _plan(state, url, skips_lost=skips_lost)
        on_plan(found)
        lost = [*state.lost, *(list(span) for span in found.lost)]
        state = replace(state, lost=lost, cluster=found.cluster)
        left = found.spans
        while left:
            part = limited(left, RECORDS_MAX)
            state, events = gather(spark, url, folder, state, part)
            save(folder, state)
            yield Step(sum(span.end - span.start for span in part), events, ())
            ends = {span.partition_group: span.end for span in part}
            left = [span._replace(start=ends[span.partition_group]) for span in left]
            left = [span for span in left if span.start < span.end]
        while state.stale:
            hours = state.stale[:HOURS_MAX]
            state = build(spark, folder, state, hours)
            save(folder, state)
            yield Step(0, 0, tuple(hours))
