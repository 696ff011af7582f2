"""Databases for the tests of cdc: each of their servers is started once for all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pipeline.cdc.shops import Shop, binary_log_shop, postgresql_shop, sqlite_shop
from tests.pipeline.nodes import Nodes
from tests.process.databases import postgresql
from tests.process.mariadb import mariadb
from tests.process.mysql import mysql


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """One node for all tests: only the capture is killed here."""
    with Nodes(1) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """A PostgreSQL whose log can be decoded."""
    with postgresql("wal_level=logical", "max_replication_slots=50", "max_wal_senders=20") as name:
        yield name


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Path]:
    """A MariaDB whose log has rows."""
    settings = ("log_bin=binlog", "binlog_format=ROW", "binlog_row_metadata=FULL")
    with mariadb(*settings) as socket:
        yield socket


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[Path]:
    """A MySQL whose log has rows and global identifiers."""
    settings = ("log_bin=binlog", "binlog_row_metadata=FULL", "gtid_mode=ON")
    with mysql(*settings, "enforce_gtid_consistency=ON") as socket:
        yield socket


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A database with an empty table, of each kind in turn."""
    with _shop(request, request.param, tmp_path) as shop:
        shop.create()
        yield shop


@pytest.fixture
def postgresql_item(postgresql_server: str) -> Iterator[Shop]:
    """A PostgreSQL with an empty table."""
    with postgresql_shop(postgresql_server) as shop:
        shop.create()
        yield shop


@pytest.fixture
def mariadb_item(mariadb_server: Path) -> Iterator[Shop]:
    """A MariaDB with an empty table."""
    with binary_log_shop("mariadb", mariadb_server) as shop:
        shop.create()
        yield shop


@pytest.fixture
def mysql_item(mysql_server: Path) -> Iterator[Shop]:
    """A MySQL with an empty table."""
    with binary_log_shop("mysql", mysql_server) as shop:
        shop.create()
        yield shop


@pytest.fixture(params=["mariadb", "mysql"])
def logged_item(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A database that is captured from its binary log, with an empty table, of each kind."""
    with _shop(request, request.param, tmp_path) as shop:
        shop.create()
        yield shop


@pytest.fixture
def sqlite_item(tmp_path: Path) -> Iterator[Shop]:
    """A SQLite file with an empty table."""
    with sqlite_shop(tmp_path) as shop:
        shop.create()
        yield shop


@contextmanager
def _shop(request: pytest.FixtureRequest, kind: str, folder: Path) -> Iterator[Shop]:
    if kind == "sqlite":
        with sqlite_shop(folder) as shop:
            yield shop
        return
    server = request.getfixturevalue(f"{kind}_server")
    opened = postgresql_shop(server) if kind == "postgresql" else binary_log_shop(kind, server)
    with opened as shop:
        yield shop
