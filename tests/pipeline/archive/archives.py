"""Archives made up for tests, without Spark: batches that are written and committed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raftmq.pipeline.archive import manifest, parts
from raftmq.pipeline.archive.commit import commit
from raftmq.pipeline.archive.manifest import Version

TOPICS = {"orders": 7, "stock": 8}


def archived(archive: Path, *tasks: pa.RecordBatch | list[pa.RecordBatch]) -> Version | None:
    """One micro-batch: each argument is what a task writes."""
    manifest.create(archive)
    number = len(list((archive / "data").rglob("*"))) if (archive / "data").exists() else 0
    files = []
    for task, batches in enumerate(tasks):
        batches = [batches] if isinstance(batches, pa.RecordBatch) else batches
        name = f"b{number:06}-p{task:04}"
        files += parts.write(archive, batches, name=name, after=manifest.newest(archive))
    return commit(archive, files, topics=TOPICS, query="q", batch=number)


def held(archive: Path) -> pa.Table:
    """All rows of the archive, by topic, queue and offset."""
    files = manifest.load(archive).files
    tables = [pq.read_table(archive / file.path, partitioning=None) for file in files]
    order = [("topic", "ascending"), ("queue", "ascending"), ("offset", "ascending")]
    return pa.concat_tables(tables).sort_by(order)
