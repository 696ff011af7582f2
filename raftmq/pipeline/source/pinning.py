"""The present ends of topics, for reading a batch up to the same place more than once.

Spark plans a batch again for each action: without a fixed end, two counts of one DataFrame differ
while messages come.
"""

import json

from .cluster import Cluster
from .connection import close_all
from .offsets import to_json
from .options import parse


def pin(topics: str, *, url: str = "") -> str:
    """The present ends of topics, as the option `endingOffsets` (or `startingOffsets`) takes them.

    Args:
        topics: as the option `subscribe`: their names, separated by commas.
        url: the cluster; empty: `RAFTMQ_URL`.

    Raises:
        PipelineError: there is no such topic, or no cluster is named.
        Unavailable: a leader was not found in time.
    """
    said = {"subscribe": topics} | ({"url": url} if url else {})
    try:
        return json.dumps(to_json(Cluster(parse(said)).bounds().end))
    finally:
        # This process is the user's own: the thread of an open client would keep it from ending.
        close_all()
