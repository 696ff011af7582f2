"""Topics as Parquet files by topic, day and hour, with a manifest of their own.

    <archive>/data/topic=orders/dt=2026-11-22/hour=09/*.parquet
    <archive>/_manifest/00000000000000000042.json

Start reading at `manifest` (what an archive is), then `commit` (why each row is in it once),
`parts` (how files are written), `sink` (what Spark runs), `job` (the run), and beside them
`verify`, `compact`, `listing` and `reader`. `raftmq.pipeline.replay` turns an archive into
messages again.

Left out: table formats. Delta Lake and Iceberg bring jars from the network, and a schema that never
changes needs little of what they do.
"""

from .reader import Archived, get, read

__all__ = ["Archived", "get", "read"]
