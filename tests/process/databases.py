"""Local databases as the recipe of docs/transactions.md uses them: SQLite and PostgreSQL alike.

A database is named by one text, so that processes can be told of it: `sqlite:PATH`, or
`postgresql:` and libpq's connection string.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

INSTALL = "apt-get install postgresql"
SERVER_USER = "postgres"
"""Of the system, as Debian's package makes it, and of the database."""
START_SECONDS_MAX = 60.0
TABLES = (
    "CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, outcome TEXT)",
    "CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS shipped (number TEXT)",
)


class Database:
    """A connection, used by one thread at a time."""

    def __init__(
        self, connection: Any, mark: str, begin: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._connection = connection
        self._mark = mark
        self.transaction = begin
        """`with database.transaction():` is one database transaction: durable when it is left, or
        rolled back by an exception."""

    def execute(self, statement: str, *values: str) -> Any:
        """The cursor of a statement, in which each value is marked by `?`."""
        return self._connection.execute(statement.replace("?", self._mark), values)

    def close(self) -> None:
        """No more of it."""
        self._connection.close()

    def column(self, statement: str) -> list[str]:
        """The first column of the rows found, sorted."""
        return sorted(row[0] for row in self.execute(statement).fetchall())


@contextmanager
def connected(name: str) -> Iterator[Database]:
    """A new connection, closed at the end."""
    database = open_database(name)
    try:
        yield database
    finally:
        database.close()


def open_database(name: str) -> Database:
    """A new connection."""
    kind, _, where = name.partition(":")
    if kind == "sqlite":
        lite = sqlite3.connect(where, timeout=90)
        return Database(lite, "?", lambda: lite)
    import psycopg

    post = psycopg.connect(where, autocommit=True)
    return Database(post, "%s", post.transaction)


def create_tables(name: str) -> None:
    """Make what the recipe needs in an empty database."""
    with connected(name) as database, database.transaction():
        for statement in TABLES:
            database.execute(statement)


@contextmanager
def postgresql(*settings: str) -> Iterator[str]:
    """libpq's connection string of a new server, without a database; the server is gone at the end.
    `settings` are as `wal_level=logical`.

    The server refuses root: then it runs as the user that Debian's package made for it, and all of
    it is in a folder of that user. It listens on a socket in there and nowhere else.
    """
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="raftmq-pg-"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    how: dict[str, Any] = {"cwd": folder, "env": environment}
    if os.geteuid() == 0:
        shutil.chown(folder, SERVER_USER, SERVER_USER)
        how |= {"user": SERVER_USER, "group": SERVER_USER, "extra_groups": []}
    try:
        _make(programs, folder, how)
        with _running(programs, folder, settings, how):
            yield f"host={folder} user={SERVER_USER}"
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    """Where the newest server's programs are."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    if not found:
        pytest.skip(f"there is no PostgreSQL server here: {INSTALL}")
    try:
        import psycopg  # noqa: F401  # it needs libpq, which comes with the server
    except ImportError as error:
        pytest.skip(f"psycopg does not work here ({error}): {INSTALL}")
    return found[-1].parent


def _make(programs: Path, folder: Path, how: dict[str, Any]) -> None:
    command = [f"{programs}/initdb", "-D", f"{folder}/data", "-U", SERVER_USER, "-A", "trust"]
    # This is about the empty database; the server syncs what is committed, as it does by default.
    command += ["--no-sync", "--no-locale", "-E", "UTF8"]
    made = subprocess.run(command, capture_output=True, text=True, **how)
    assert made.returncode == 0, made.stderr


@contextmanager
def _running(
    programs: Path, folder: Path, settings: tuple[str, ...], how: dict[str, Any]
) -> Iterator[None]:
    import psycopg

    log = folder / "log"
    command = [f"{programs}/postgres", "-D", f"{folder}/data", "-k", f"{folder}", "-h", ""]
    command += [part for setting in settings for part in ("-c", setting)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, **how) as server:
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while True:
                try:
                    psycopg.connect(f"host={folder} user={SERVER_USER}").close()
                    break
                except psycopg.OperationalError:
                    assert server.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.05)
            yield
        finally:
            # At once: its last writes are of no use.
            server.send_signal(signal.SIGQUIT)
