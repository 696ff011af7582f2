"""Statements in a binary log as a capture reads them, and a recorded log; no server is needed."""

from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.pipeline.cdc.binary_log.mariadb import MariadbSource
from raftmq.pipeline.cdc.binary_log.mysql import MysqlSource
from raftmq.pipeline.cdc.change import Change, Idle
from raftmq.pipeline.errors import PipelineError
from tests.pipeline.cdc.conversation import played

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


def test_recorded_log_of_mysql_has_its_changes() -> None:
    """What a server of 8.0.15 has sent for `conversation.STATEMENTS`."""
    with played():
        source = MysqlSource("mysql://root@localhost/shop", "goods", "goods")
        assert source.prepare() == []
        until_idle = takewhile(
            lambda event: not isinstance(event, Idle), source.events(source.now())
        )
        found = [event for event in until_idle if isinstance(event, Change)]
    tea = {"id": 1, "name": "tea é", "price": "12.50", "stamp": "2026-01-02 03:04:00.000"}
    old, new = tea | {"note": '{"a": [1, 2.5, null]}'}, tea | {"note": '[1.10, "2026-01-02"]'}
    bare: dict[str, Any] = {"name": None, "price": None, "note": None, "stamp": None}
    two, three, four = bare | {"id": 2}, bare | {"id": 3}, bare | {"id": 4}
    assert [(str(change.op), change.before, change.after) for change in found] == [
        ("c", None, old),
        ("c", None, two),
        ("c", None, three),
        ("u", old, new),
        ("d", three, None),
        ("c", None, four),
        ("d", two, None),
        ("t", None, None),
    ]
    places = [(change.position, change.seq) for change in found]
    assert places == sorted(set(places))
    # One transaction a statement.
    assert len({change.position for change in found}) == 6
