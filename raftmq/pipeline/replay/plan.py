"""The plan of a replay: fixed at the first start, and equal at each later start.

    {"id": "orders-1f3a9c2e", "topic": "orders", "into": "orders-again", "ranges": [[0, 120, 480]],
     "queues": 4, "where": null, "first": 1795262400000000}

`--since` and `--until` become offsets of each queue, so a replay that was killed goes on with the
same messages, though the archive has grown or was compacted. The plan's id follows from the
request (`ReplayRequest`), so the same command finds its own plan again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import raftmq
from raftmq.pipeline import durable
from raftmq.pipeline.archive.commit import ranges_of
from raftmq.pipeline.archive.manifest import Range, Version, load
from raftmq.pipeline.archive.reader import check_known, microseconds
from raftmq.pipeline.errors import PipelineError

from .timeline import Timeline, first_offset

FOLDER = "_replays"
CHECKPOINT = "checkpoint"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A user's request for a replay."""

    topic: str
    """The topic in the archive."""
    into: str
    """The topic that gets the messages; it may be of another cluster, and of the same name."""
    since: datetime | None = None
    """Only messages stored then or later; None: from the beginning."""
    until: datetime | None = None
    """Only messages stored before; None: all that are archived at the first start."""
    offsets: Mapping[int, tuple[int, int]] | None = None
    """Queue → [start, end), and no other queue; None: all, by time."""
    where: str | None = None
    """Only rows for which this condition of Spark's SQL holds; None: all."""
    id: str = ""
    """The replay's id; empty: it is made from the archive's path and the other fields."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages that a replay sends."""

    id: str
    """The replay's name, which its messages carry."""
    topic: str
    """The topic in the archive."""
    into: str
    """The topic that gets the messages."""
    queues: int
    """Queues of that topic when it was planned: queue q goes to q modulo this."""
    ranges: tuple[Range, ...]
    """Ranges in the order of queues; at most one a queue, none is empty."""
    first: int
    """When the first message was stored, microseconds since 1970; 0 if there is none."""
    where: str | None
    """Condition of Spark's SQL, or None."""

    @property
    def rows(self) -> int:
        """Offsets in all ranges; what `where` leaves of them is not known."""
        return sum(end - start for _, start, end in self.ranges)


class Planned(NamedTuple):
    """A plan, and how far it has come."""

    plan: Plan
    is_new: bool
    """Whether it was not started yet."""
    is_done: bool
    """Whether all of it is stored already."""


def find(archive: Path, request: ReplayRequest, url: str) -> Planned:
    """The plan for a request: the one that was begun, or a new one. Changes nothing.

    Args:
        archive: its folder.
        request: what to replay.
        url: the cluster that gets the messages.

    Raises:
        PipelineError: there is no archive, or it lacks the topic or the offsets; or a replay of
            that id is another one.
        RaftmqError: the cluster can't be reached, or has no topic `into`.
    """
    name = name_of(archive, request)
    folder = folder_of(archive, name)
    if (folder / "plan.json").exists():
        plan = read(folder)
        _check_same(plan, request)
        return Planned(plan, is_new=False, is_done=(folder / "done.json").exists())
    state = load(archive)
    check_known(state, [request.topic])
    with raftmq.blocking.connect(url) as mq:
        queues = len(mq.admin.describe_topic(request.into).queues)
    ranges = chosen(archive, state, request)
    lines = (Timeline(archive, state.files, request.topic, each).moment for each in ranges)
    first = min((moment for moment in lines if moment is not None), default=0)
    plan = Plan(name, request.topic, request.into, queues, ranges, first, request.where)
    return Planned(plan, is_new=True, is_done=False)


def chosen(archive: Path, state: Version, request: ReplayRequest) -> tuple[Range, ...]:
    """The range of each queue that a request means, by queue; none is empty.

    Raises:
        PipelineError: the archive lacks offsets that it names.
    """
    held = {
        queue: Range(queue, ranges[0].start, max(each.end for each in ranges))
        for (topic, queue), ranges in ranges_of(state.files).items()
        if topic == request.topic
    }
    if request.offsets is not None:
        return tuple(_within(held, queue, *part) for queue, part in sorted(request.offsets.items()))
    found = []
    for queue, part in sorted(held.items()):
        start, end = part.start, part.end
        if request.since is not None:
            moment = microseconds(request.since)
            start = first_offset(archive, state.files, request.topic, part, moment)
        if request.until is not None:
            moment = microseconds(request.until)
            end = first_offset(archive, state.files, request.topic, part, moment)
        if start < end:
            found.append(Range(queue, start, end))
    return tuple(found)


@contextmanager
def begun(archive: Path, plan: Plan) -> Iterator[Path]:
    """Make the plan durable and lock it, so no other driver works on it; gives the folder.

    Raises:
        PipelineError: another driver works on it.
    """
    folder = folder_of(archive, plan.id)
    durable.make_folders(folder)
    with durable.locked(folder / "lock", busy=f"another driver runs replay {plan.id}"):
        # The first plan stays: a later start has to send the same messages.
        if not (folder / "plan.json").exists():
            durable.create(folder / "plan.json", json.dumps(asdict(plan), indent=2).encode())
        yield folder


def read(folder: Path) -> Plan:
    """The plan of a replay that was begun."""
    plain = json.loads((folder / "plan.json").read_text())
    plain["ranges"] = tuple(Range(*each) for each in plain["ranges"])
    return Plan(**plain)


def folder_of(archive: Path, name: str) -> Path:
    """The folder of a replay's plan and progress."""
    return archive / FOLDER / name


def name_of(archive: Path, request: ReplayRequest) -> str:
    """The replay's id.

    Raises:
        PipelineError: it is no name of a file.
    """
    if not request.id:
        text = repr((str(archive.absolute()), asdict(request))).encode()
        return f"{request.topic}-{blake2b(text, digest_size=4).hexdigest()}"
    if not _NAME.fullmatch(request.id):
        raise PipelineError(
            f"{request.id!r} can't be a replay's id",
            "use 1 to 100 of A-Z a-z 0-9 . _ - and begin with none of . _ -",
        )
    return request.id


def _check_same(plan: Plan, request: ReplayRequest) -> None:
    begun, asked = (plan.topic, plan.into, plan.where), (request.topic, request.into, request.where)
    if begun != asked:
        raise PipelineError(
            f"replay {plan.id} was begun from {plan.topic} into {plan.into}"
            + (f" where {plan.where}" if plan.where else ""),
            "go on with the same options, or choose another id",
        )


def _within(held: dict[int, Range], queue: int, start: int, end: int) -> Range:
    part = held.get(queue)
    if part is None or not part.start <= start < end <= part.end:
        there = "nothing" if part is None else f"{part.start}-{part.end - 1}"
        raise PipelineError(
            f"queue {queue} has no offsets {start}-{end - 1} in the archive",
            f"it holds {there} of that queue; `raftmq pipeline archive ls DIR` shows all",
        )
    return Range(queue, start, end)
