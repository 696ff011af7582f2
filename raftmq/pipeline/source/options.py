"""The options of the source: what can be said, what was said, and what contradicts itself.

| option | default | meaning |
|---|---|---|
| table | messages | `messages`; `events` has options of its own: see `events` |
| subscribe | needed | the topics, separated by commas |
| url | `RAFTMQ_URL`, as Spark was started with it | `raftmq://host:port[,host:port...]` |
| startingOffsets | earliest | `earliest`, `latest` (streams, with `job`), or JSON: see `offsets` |
| endingOffsets | latest | `latest`, or JSON; batch |
| startingTimestamp | | the first message stored then or later: ISO with a zone, or milliseconds |
| endingTimestamp | | only messages stored before; batch |
| maxOffsetsPerTrigger | | messages a micro-batch at most, shared in proportion to the backlogs |
| minPartitions | | Spark partitions at least: large queues are split |
| failOnDataLoss | true | whether messages that retention took away unread are an error |
| gaps | | with failOnDataLoss=false: a folder for a Parquet table of what is missing |
| columns | all | some columns of the row, separated by commas |
| includeBody | true | false: all columns but `body` |
| filter | | tags (`paid \\|\\| shipped`) or SQL (`amount > 5`), as consumers have it |
| job | | streams: progress is kept as the group `spark-<job>` |
| timeout | 60 | seconds without a leader until an error |
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches

from raftmq.errors import FilterSyntaxError
from raftmq.pipeline.errors import PipelineError
from raftmq.pipeline.rows import COLUMNS

from .offsets import RequestedOffsets, parse_requested

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NAMES = (
    "table", "subscribe", "url", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss", "gaps",
    "columns", "includeBody", "filter", "job", "timeout",
)  # fmt: skip
"""All options."""

STREAM_ONLY = ("maxOffsetsPerTrigger", "job")
BATCH_ONLY = ("endingOffsets", "endingTimestamp")

Where = str | dict[str, RequestedOffsets] | datetime
"""`earliest`, `latest`, offsets, or a time."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options as the user gave them, checked."""

    topics: tuple[str, ...]
    """By name, each once."""
    url: str
    """The cluster."""
    start: Where
    """Where to begin."""
    end: Where
    """Where a batch ends."""
    rows_max: int | None
    """Messages a micro-batch at most; None: all there are."""
    parts_min: int
    """Spark partitions at least."""
    fails_on_loss: bool
    """Whether messages that are gone are an error."""
    gaps: str | None
    """The folder of the table of gaps."""
    columns: tuple[str, ...]
    """Columns in the order of the row."""
    filter: str | None
    """Tags or SQL that select messages; None: all messages."""
    job: str | None
    """The job's name."""
    timeout: float
    """Seconds."""

    @property
    def group(self) -> str | None:
        """The consumer group that holds the progress; None: no group does."""
        return f"spark-{self.job}" if self.job else None


def parse(given: Mapping[str, str]) -> Options:
    """Read options; names may be in any case, as Spark gives them.

    Raises:
        PipelineError: an option does not exist, cannot be read, or contradicts another one.
    """
    said = _named(given)
    topics = tuple(sorted({name.strip() for name in said.get("subscribe", "").split(",")} - {""}))
    if not topics:
        raise PipelineError("no topic is named", 'say which: .option("subscribe", "orders")')
    url = said.get("url") or os.environ.get("RAFTMQ_URL", "")
    if not url:
        raise PipelineError(
            "no cluster is named", 'set RAFTMQ_URL, or .option("url", "raftmq://host:7400")'
        )
    fails_on_loss = _flag(said, "failOnDataLoss", default=True)
    if "gaps" in said and fails_on_loss:
        message = "option gaps is of no use while failOnDataLoss is true"
        raise PipelineError(message, "set failOnDataLoss to false as well, or leave gaps out")
    return Options(
        topics=topics,
        url=url,
        start=_where(said, "starting", topics, "earliest"),
        end=_where(said, "ending", topics, "latest"),
        rows_max=_number(said, "maxOffsetsPerTrigger"),
        parts_min=_number(said, "minPartitions") or 1,
        fails_on_loss=fails_on_loss,
        gaps=said.get("gaps"),
        columns=_columns(said),
        filter=_filter(said),
        job=said.get("job"),
        timeout=float(_number(said, "timeout") or 60),
    )


def check_kind(given: Mapping[str, str], *, is_stream: bool) -> None:
    """Refuse options that mean something only in the other kind of read.

    Raises:
        PipelineError: it names the option.
    """
    said = _named(given)
    kind, other = ("stream", "batch") if is_stream else ("batch", "stream")
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if name in said:
            load = "spark.read" if is_stream else "spark.readStream"
            message = f"option {name} is for a {other} read, and this is a {kind} read"
            raise PipelineError(message, f"leave it out, or read with {load}")


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Options under the names that `NAMES` has."""
    names = {name.lower(): name for name in NAMES}
    said = {}
    for name, value in given.items():
        known = names.get(name.lower())
        if known is None:
            close = get_close_matches(name.lower(), names, n=1)
            hint = f"did you mean {names[close[0]]}? " if close else ""
            message = f"there is no option {name!r}"
            raise PipelineError(message, f"{hint}There are {', '.join(NAMES)}")
        said[known] = str(value)
    return said


def _where(said: dict[str, str], side: str, topics: tuple[str, ...], default: str) -> Where:
    by_offset, by_time = f"{side}Offsets", f"{side}Timestamp"
    if by_offset in said and by_time in said:
        message = f"options {by_offset} and {by_time} contradict each other"
        raise PipelineError(message, "leave one of them out")
    if by_time in said:
        return parse_time(said[by_time], by_time)
    text = said.get(by_offset, default).strip()
    if text.lower() in ("earliest", "latest"):
        if (side, text.lower()) == ("ending", "earliest"):
            raise PipelineError("a batch that ends at the earliest message is empty", _END)
        return text.lower()
    requested = parse_requested(text, by_offset)
    unknown = sorted(set(requested) - set(topics))
    if unknown:
        message = f"option {by_offset} names {', '.join(unknown)}, and {', '.join(topics)} is read"
        raise PipelineError(message, "name the same topics in both")
    return requested


_END = "set endingOffsets to latest, or to offsets as JSON"


def parse_time(text: str, option: str) -> datetime:
    """A time as users write it.

    >>> parse_time("1500", "startingTimestamp").isoformat()
    '1970-01-01T00:00:01.500000+00:00'

    Raises:
        PipelineError: it is neither ISO with a time zone nor milliseconds.
    """
    try:
        if text.strip().isdecimal():
            return EPOCH + timedelta(milliseconds=int(text))
        time = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        time = datetime.min  # noqa: DTZ901  # without a zone, which is refused below
    if time.tzinfo is None:
        message = f"option {option} is no time with a time zone: {text}"
        raise PipelineError(message, "write 2026-11-22T08:00:00Z, or milliseconds since 1970")
    return time


def _flag(said: dict[str, str], name: str, *, default: bool) -> bool:
    value = said.get(name, str(default)).strip().lower()
    if value not in ("true", "false"):
        raise PipelineError(f"option {name} is neither true nor false: {value}", "set it to one")
    return value == "true"


def _number(said: dict[str, str], name: str) -> int | None:
    if name not in said:
        return None
    text = said[name].strip()
    if not text.isdecimal() or int(text) < 1:
        raise PipelineError(f"option {name} is no whole number from 1: {text}", "give it one")
    return int(text)


def _columns(said: dict[str, str]) -> tuple[str, ...]:
    has_body = _flag(said, "includeBody", default=True)
    if "columns" not in said:
        return tuple(name for name in COLUMNS if has_body or name != "body")
    wanted = [name.strip() for name in said["columns"].split(",") if name.strip()]
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown or not wanted:
        message = f"option columns: there is no column {', '.join(unknown) or 'named'}"
        raise PipelineError(message, f"there are {', '.join(COLUMNS)}")
    if not has_body and "body" in wanted:
        message = "option columns names body, and includeBody is false"
        raise PipelineError(message, "leave one of them out")
    return tuple(name for name in COLUMNS if name in wanted)


def _filter(said: dict[str, str]) -> str | None:
    text = said.get("filter")
    if text is None:
        return None
    # The module loads numpy, so a read without a filter does not import it.
    from raftmq.filters import compile as compile_filter

    try:
        compile_filter(text)
    except FilterSyntaxError as error:
        message = f"option filter: {error.problem} (at character {error.position + 1}: {text})"
        fix = f"raftmq filter explain {text!r} shows what it means"
        raise PipelineError(message, fix) from None
    return text
