"""A table of a database as capture sees it: the interface of each kind of database.

    source = open_source("postgresql://127.0.0.1/shop", "orders", "orders-changes")

| kind | how changes are seen | what wakes the capture | what is kept for it |
|---|---|---|---|
| `sqlite` | triggers write a table of changes | it looks at a counter in the file's head | rows |
| `postgresql` | logical decoding, plugin pgoutput | the server sends | a replication slot |
| `mariadb`, `mysql` | the binary log, by rows | the server sends | binary logs, for some time |
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from raftmq.pipeline.errors import PipelineError

from .change import Event, Place, Snapshot, Table


class Source(Protocol):
    """A captured table. One thread uses it."""

    table: Table
    """The captured table."""

    def prepare(self) -> list[str]:
        """The statements that make the table ready to be captured; empty: it is ready. Changes
        nothing."""

    def undo(self) -> list[str]:
        """The statements that take back what `prepare` and captures have left. Changes nothing."""

    def execute(self, statements: list[str]) -> None:
        """Run such statements, in one transaction if the database can."""

    def claim(self) -> AbstractContextManager[None]:
        """Inside, no other capture of this table into this topic runs.

        Raises:
            PipelineError: another capture runs.
        """

    def now(self) -> Place:
        """A place after all transactions that are committed at the call."""

    def check(self, after: Place) -> None:
        """Check that the database still has all changes after this place.

        Raises:
            PipelineError: it has not, and a new snapshot is needed.
        """

    def snapshot(self, *, is_first: bool) -> AbstractContextManager[Snapshot]:
        """All rows. With `is_first`, the database keeps changes from the snapshot's place on."""

    def events(self, after: Place) -> Iterator[Event]:
        """Changes, in the order of commits, from this place or from somewhat before it. Endless;
        while there is nothing, `Idle` comes several times a second."""

    def confirm(self, reached: Place) -> None:
        """Note that the topic has all changes before this place: the database may forget them."""

    def close(self) -> None:
        """End its connections."""


def open_source(database: str, table: str, topic: str) -> Source:
    """Connect to a database and look at a table.

    Args:
        database: `sqlite:PATH`, `postgresql://user@host/name`, or
            `mariadb://user:password@host:port/name` (`?unix_socket=PATH` for a socket); `mysql://`
            likewise.
        table: its name, with its schema where it has another than usual.
        topic: the topic of its changes; the database remembers separately for each topic.

    Raises:
        PipelineError: the database cannot be reached or read; there is no such table, or none that
            can be captured.
    """
    kind = database.partition(":")[0]
    match kind:
        case "sqlite":
            from .sqlite import SqliteSource

            return SqliteSource(database.partition(":")[2], table, topic)
        case "postgresql" | "postgres":
            from .postgresql import PostgresqlSource

            return PostgresqlSource(database, table, topic)
        case "mariadb":
            from .binary_log.mariadb import MariadbSource

            return MariadbSource(database, table, topic)
        case "mysql":
            from .binary_log.mysql import MysqlSource

            return MysqlSource(database, table, topic)
    raise PipelineError(
        f"{database!r} names no database that can be captured",
        "write sqlite:PATH, postgresql://user@host/name, mariadb://user@host/name or "
        "mysql://user@host/name",
    )
