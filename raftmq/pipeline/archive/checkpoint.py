"""The progress of a query, from Spark's checkpoint.

| file | meaning |
|---|---|
| commits/17 | batch 17 is done |
| offsets/17 | its plan; the last line is the source's end, as JSON |
"""

import json
from pathlib import Path
from typing import Any

from .manifest import Ends

FOLDER = "_checkpoint"


def committed_ends(checkpoint: Path) -> Ends:
    """Topic → queue → the offset after the last one of the newest batch that is done.

    Empty when there is no checkpoint, or none that was written by the source of raftmq.
    """
    try:
        return {
            topic: {int(queue): int(end) for queue, end in entry["queues"].items()}
            for topic, entry in (committed(checkpoint) or {}).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def committed(checkpoint: Path) -> Any:
    """The only source's end after the newest batch that is done; None: no batch is."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdecimal()]
    if not done:
        return None
    path = checkpoint / "offsets" / str(max(done))
    return json.loads(path.read_text().strip().splitlines()[-1]) if path.exists() else None
