"""The meaning of texts, pinned by a file: replicas that read a filter differently would diverge.

Each line of `grammar.jsonl` has a text and what it is: refused, or whether it holds for each of
`ROWS`. Texts with signs such as `==` are refused: clients write them as SQL, so no record has them
(`raftmq.machine.catalog.subscribers`). A text's meaning may change only together with the version
of the catalog's records, so that software which reads it otherwise stops at the record (decision
0010).

    python -m tests.filters.test_grammar        write the file again, after such a change
"""

import json
from pathlib import Path
from random import Random
from typing import Any

from raftmq.filters import FilterSyntaxError, is_sql
from raftmq.filters import compile as compile_filter
from raftmq.machine.catalog.catalog import Catalog
from raftmq.machine.machine import PartitionMachine
from tests.filters.expressions import Writer

FILE = Path(__file__).with_name("grammar.jsonl")
TEXTS = 200
ROWS: list[dict[str, Any]] = [
    {},
    {"a": 5, "b": "x", "city": "Paris", "type": "a", "Amount": 2.5, "$x_1": True, "AND": 0},
    {"a": "5", "b": 1, "city": "", "odd name": -1, "a`b": "100%", "Amount": 2**53 + 1, "$x_1": 5.0},
    {"a": False, "b": b"a", "city": "P\u00e9s", "type": 0.0, "Amount": float("nan"), "AND": "a_b"},
]
PLAIN = ["", "*", "paid", "paid || shipped", "a||b", "a || ", "|| a", "a || b || a", "a b", "TRUE"]
SIGNS = ["a == 5", "a != 5", "a = 5 && b = 'x'", "a = 5 || b = 1", "!a", 'b = "x"', "a == nil"]
NAMED_NIL = ["nil", "nil = 5", "a = nil", "nil IS NULL", "a <> 5 OR (nil)"]


def meaning(text: str) -> list[bool] | None:
    """Whether a text in a record holds for each row, tagged `paid`; None: it is refused."""
    try:
        found = compile_filter(text)
    except FilterSyntaxError:
        return None
    if not is_sql(text):
        return None
    return [found.matches(row, tag="paid") for row in ROWS]


def written() -> list[Any]:
    """The file's expected content: the versions, then texts with their meanings."""
    writer = Writer(Random(1))
    texts = PLAIN + SIGNS + NAMED_NIL + [writer.text() for _ in range(TEXTS)]
    return [
        [Catalog.record_version, PartitionMachine.record_version],
        *([text, meaning(text)] for text in texts),
    ]


def test_meaning_of_a_text_changes_only_with_the_version_of_records() -> None:
    versions, *lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    ours = [Catalog.record_version, PartitionMachine.record_version]
    assert versions == ours, "write the file again"
    assert len(lines) > TEXTS
    assert sum(expected is None for _, expected in lines) > 10
    for text, expected in lines:
        assert meaning(text) == expected, f"{text!r} has another meaning: raise record_version"


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(line) + "\n" for line in written()))
