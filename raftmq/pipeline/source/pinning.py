"""Where topics end now, to be read up to there as often as one likes.

Spark plans a batch anew for each action: without an end of its own, two counts of one DataFrame
differ while messages come.
"""

import json

from .cluster import Cluster
from .connection import close_all
from .offsets import to_json
from .options import parse


def pin(topics: str, *, url: str = "") -> str:
    """Where topics end now, as the option `endingOffsets` (or a `startingOffsets`) takes it.

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
        # This process is the user's own: the thread of a client would outlive its last line.
        close_all()
