"""The options of the sink; the table stands in the folder's heading."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from raftmq.pipeline.errors import PipelineError

NAMES = ("topic", "url", "compression", "timeout", "writeId", "partitions")
"""All options."""
SPARKS = ("path", "checkpointlocation", "queryname", "numrows", "truncate", "outputmode")
"""Options that Spark gives to every sink, in lower case."""
COMPRESSIONS = ("none", "lz4", "zstd")
"""How bodies may be stored."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options as the user gave them, checked."""

    topic: str
    """The topic that gets the messages."""
    url: str
    """The cluster."""
    compression: str = "none"
    """One of `COMPRESSIONS`."""
    timeout: float = 60.0
    """Seconds."""
    write_id: str = ""
    """The name of a batch write; empty: each run is another write."""
    partitions: int = 0
    """The number of partitions of a named write's rows; 0: not given."""


def parse(given: Mapping[str, str], *, is_stream: bool) -> Options:
    """Read options; names may be in any case, as Spark gives them.

    Raises:
        PipelineError: an option does not exist, cannot be read, or is missing.
    """
    said = _named(given)
    if not said.get("topic"):
        raise PipelineError("no topic is named", 'say which: .option("topic", "orders")')
    url = said.get("url") or os.environ.get("RAFTMQ_URL", "")
    if not url:
        raise PipelineError(
            "no cluster is named", 'set RAFTMQ_URL, or .option("url", "raftmq://host:7400")'
        )
    compression = said.get("compression", "none").lower()
    if compression not in COMPRESSIONS:
        message = f"there is no compression {compression!r}"
        raise PipelineError(message, f"it is one of {', '.join(COMPRESSIONS)}")
    if is_stream and "writeId" in said:
        message = "option writeId is for a batch write; a stream has its checkpoint"
        raise PipelineError(message, "leave it out")
    partitions = _partitions(said)
    seconds = _seconds(said.get("timeout"))
    write_id = said.get("writeId", "")
    return Options(said["topic"], url, compression, seconds, write_id, partitions)


def _named(given: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in NAMES}
    said = {}
    for name, value in given.items():
        if name.lower() in names:
            said[names[name.lower()]] = value
        elif name.lower() not in SPARKS:
            close = get_close_matches(name.lower(), names, n=1)
            fix = f"did you mean {names[close[0]]}?" if close else f"there are {', '.join(NAMES)}"
            raise PipelineError(f"the sink has no option {name!r}", fix)
    return said


def _partitions(said: Mapping[str, str]) -> int:
    """The option `partitions`, which needs `writeId` and is needed by it."""
    text = said.get("partitions")
    if ("writeId" in said) is not (text is not None):
        message = "option writeId needs option partitions, and the other way round"
        fix = "fix their number, and say it: rows.repartition(8, 'key') and partitions=8"
        raise PipelineError(message, fix)
    if text is None:
        return 0
    if not text.isdecimal() or not 0 < int(text) <= 1 << 31:
        raise PipelineError(f"partitions {text!r} is no number of partitions", "give one above 0")
    return int(text)


def _seconds(text: str | None) -> float:
    if text is None:
        return 60.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 24 * 3600:
        raise PipelineError(f"timeout {text!r} is no number of seconds", "give one above 0")
    return seconds
