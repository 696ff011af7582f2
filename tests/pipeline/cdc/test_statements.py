"""Statements in MariaDB's binary log as a capture reads them; no server is needed."""

from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.pipeline.cdc.mariadb import MariadbSource
from raftmq.pipeline.errors import PipelineError

CASCADE = "ALTER TABLE item ADD FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE"


def empties(query: str) -> bool:
    source: Any = object.__new__(MariadbSource)
    source._schema, source._plain = "shop", "item"
    source.table = SimpleNamespace(name="shop.item")
    return MariadbSource._empties(source, SimpleNamespace(query=query, schema=b"shop"))


@pytest.mark.parametrize(
    "before", ["", "\n", "/* of a tool */ ", "/*a*//*b*/", "-- why\n", "# a\n"]
)
def test_statement_counts_with_comments_before_it(before: str) -> None:
    """A foreign key that changes rows, made while a capture runs, ends the capture as any ALTER:
    the next one meets it in `prepare`."""
    assert empties(f"{before}TRUNCATE TABLE item")
    assert not empties(f"{before}CREATE INDEX by_name ON item (name)")
    with pytest.raises(PipelineError, match="was changed by"):
        empties(before + CASCADE)
    with pytest.raises(PipelineError, match="and not its rows"):
        empties(f"{before}DELETE FROM item")
    assert not empties(f"{before}TRUNCATE TABLE other")
