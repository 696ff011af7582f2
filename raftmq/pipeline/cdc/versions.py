"""The versions of a rebuilt table in a folder, and the current one.

    orders/v=7/*.parquet     the table before
    orders/v=8/*.parquet     the table
    orders/CURRENT           {"version": 8, "topic": "orders-changes", "end": 120411, ...}
    orders/LOCK              held by the process that makes a version

A version is written whole, made durable, and then named by `CURRENT`, which is replaced in one
step. So readers that take the version from `CURRENT` see a whole table at any time, and a kill
leaves at most a folder that the next version writes over. The version before stays, for readers
that have begun.

| field of CURRENT | meaning |
|---|---|
| version | the folder `v=<version>` |
| topic, topic_id | where the changes come from: a topic created again has another number |
| end | the offset after the last change that is in it |
| source, table, schema, columns | of the table in the database, see `change` |
| position, lsn | of the last message that is in it |
| rows | how many |

A column of kind `int` is a bigint, `bool` a boolean, `bytes` a binary; other columns are strings
with the database's text, which a reader casts to numbers or times.

Left out: object stores, which rename no files; on a cluster the folder has to be one that all of
Spark's workers and this process share.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

from raftmq.pipeline import durable
from raftmq.pipeline.errors import PipelineError

from .change import Column, Table, columns_of

KEPT = 2
"""Versions that stay: the current one, and the one before."""


class Version(NamedTuple):
    """The content of `CURRENT`."""

    version: int
    """The folder `v=<version>`."""
    topic: str
    """The topic of the changes."""
    topic_id: int
    """The topic's number."""
    end: int
    """The offset after the last change that is in it."""
    source: str
    """The kind of database."""
    table: str
    """The table's name there."""
    schema: str
    """The fingerprint of its columns."""
    columns: tuple[Column, ...]
    """The table's columns, in order."""
    position: int
    """The position of the last message that is in it."""
    lsn: str
    """The place of that message in the database's words."""
    rows: int
    """Number of rows."""

    @property
    def of(self) -> Table:
        """The table."""
        return Table(self.source, self.table, self.columns)


def current(folder: Path) -> Version | None:
    """The current version; None: there is none yet.

    Raises:
        PipelineError: `CURRENT` cannot be read.
    """
    path = folder / "CURRENT"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        return Version(**content | {"columns": columns_of(content["columns"])})
    except (ValueError, TypeError, KeyError) as error:
        raise PipelineError(
            f"{path} cannot be read: {error}", "take another folder, or rebuild in an empty one"
        ) from error


def path_of(folder: Path, version: int) -> Path:
    """The folder of a version's files."""
    return folder / f"v={version}"


def publish(folder: Path, version: Version) -> None:
    """Make a written version the current one, durably; drop old versions."""
    # The files and their names are durable before `CURRENT` names the version.
    durable.sync_files(path_of(folder, version.version))
    durable.sync_folder(folder)
    durable.replace(folder / "CURRENT", json.dumps(version._asdict(), indent=2).encode())
    for old in folder.glob("v=*"):
        if int(old.name[2:]) <= version.version - KEPT:
            shutil.rmtree(old)
