"""The cost of filters, as ratios within one run: `python -m bench.cores.filters`.

    python -m bench.cores.filters [--expressions 10000] [--messages 500] [--rounds 4] [--json FILE]

| row | ours | against |
|---|---|---|
| parse | our parser | lark's LALR parser of the same grammar, building its tree only |
| one message | `Index.match` | each expression as generated Python source, one after the other |
| one batch | `Index.match_batch`, with decoding | the same scan, message by message |
| add | one more expression beside 100,000 | 1 ms |

The expressions are like those of subscribers of one topic: 1 to 5 of 3,000 message types, each with
another equality. A share of the expressions has no message type: half of these have an equality of
another property and a range, and half have ranges only, which no index can use.

CPU seconds of this process are compared; each figure is the best of several rounds, and the sides
of a ratio take turns. A table goes to stdout, progress to stderr, and JSON to the file.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypedDict

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench.figures import write_json
from bench.machine import run_facts
from raftmq.batch import Batch, encode
from raftmq.filters import Index
from raftmq.filters.formula import Atom, Formula, Values
from raftmq.filters.parser import parse

TYPES = 3_000
REGIONS = 40
SHARES = (0.02, 0.10)
WANTED = {0.02: 100.0, 0.10: 30.0}
EXPRESSION = (
    "type = 'order-paid' AND amount BETWEEN 100 AND 5000 AND (city IN ('Paris', 'Rome', 'Oslo') "
    "OR vip = TRUE) AND NOT (channel LIKE 'web%' OR note IS NULL)"
)


class Row(TypedDict):
    """One line of the result."""

    name: str
    """Name of the measured work."""
    ours: float
    """Our CPU microseconds for one unit of work."""
    theirs: float | None
    """CPU microseconds of the other way for one unit of work, or a fixed time."""
    unit: str
    """The unit of work."""
    ratio: float
    """`theirs` / `ours`."""
    wanted: float
    """The least ratio that meets the target."""


class Load(NamedTuple):
    """Expressions, and messages to match with them."""

    texts: list[str]
    messages: list[dict[str, Any]]


def load(expressions: int, messages: int, share: float, seed: int = 1) -> Load:
    """Expressions of subscribers of one topic, and messages of the topic, drawn from a seed."""
    random = Random(seed)
    plain = round(expressions * share)
    texts = [_typed(random) for _ in range(expressions - plain)]
    texts += [_untyped(random, each % 2 == 0) for each in range(plain)]
    random.shuffle(texts)
    return Load(texts, [_message(random) for _ in range(messages)])


def _typed(random: Random) -> str:
    clauses = [
        f"(type = 't{random.randrange(TYPES)}' AND region = 'r{random.randrange(REGIONS)}')"
        for _ in range(random.randint(1, 5))
    ]
    return " OR ".join(clauses)


def _untyped(random: Random, has_equality: bool) -> str:
    limit = random.randrange(9_000, 10_000)
    if has_equality:
        return f"shop = {random.randrange(2_000)} AND amount > {limit}"
    return f"amount > {limit} AND weight < {random.randrange(20)}"


def _message(random: Random) -> dict[str, Any]:
    return {
        "type": f"t{random.randrange(TYPES)}",
        "region": f"r{random.randrange(REGIONS)}",
        "shop": random.randrange(2_000),
        "amount": random.randrange(10_000),
        "weight": random.randrange(1_000),
    }


def generated(formula: Formula) -> Callable[[dict[str, Any]], bool]:
    """The formula as a Python function: a fast naive way, correct for these properties' types."""
    test: Callable[[dict[str, Any]], bool] = eval(f"lambda p: {_source(formula)}")
    return test


def _source(formula: Formula) -> str:
    if not isinstance(formula, Atom):
        word = " and " if formula.is_all else " or "
        return f"({word.join(map(_source, formula.terms))})"
    value = f"p[{formula.name!r}]"
    if isinstance(formula.constant, Values):
        return f"{value} in {set(formula.constant.values)!r}"
    return f"{value} {'==' if formula.operator == '=' else formula.operator} {formula.constant!r}"


def best_us(work: Callable[[], object], rounds: int, number: int) -> float:
    """CPU microseconds of one call, in the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(number):
            work()
        best = min(best, time.process_time() - start)
    return best / number * 1e6


def row(name: str, unit: str, ours: float, theirs: float, wanted: float) -> Row:
    """One line; the times are CPU microseconds a unit."""
    return {
        "name": name,
        "ours": round(ours, 3),
        "theirs": round(theirs, 3),
        "unit": unit,
        "ratio": round(theirs / ours, 2),
        "wanted": wanted,
    }


def parsing(rounds: int) -> Row:
    """Our parser against lark's."""
    from tests.filters.oracle import PARSER

    ours = theirs = float("inf")
    for _ in range(rounds):
        ours = min(ours, best_us(lambda: parse(EXPRESSION), 2, 300))
        theirs = min(theirs, best_us(lambda: PARSER.parse(EXPRESSION), 2, 60))
    return row(f"parse {len(EXPRESSION)} characters", "expression", ours, theirs, 5.0)


def matching(given: Load, share: float, rounds: int) -> list[Row]:
    """The index against a scan, by message and by batch; checks that the answers are equal."""
    index: Index[int] = Index()
    for number, text in enumerate(given.texts):
        index.add(number, text)
    tests = [generated(parse(text)) for text in given.texts]
    messages = given.messages
    payload = encode([b""] * len(messages), props=messages).to_bytes(queue=1)
    scanned = messages[:40]

    def scan() -> list[set[int]]:
        return [{n for n, test in enumerate(tests) if test(props)} for props in scanned]

    def match() -> list[set[int]]:
        return [index.match(props) for props in messages]

    def match_batch() -> frozenset[int]:
        return index.match_batch(Batch.decode(payload, check=False)).ids

    found = match()
    assert found[: len(scanned)] == scan(), "the index and the scan differ"
    assert match_batch() == set().union(*found), "batch and messages differ"
    scan_us = one_us = batch_us = float("inf")
    for _ in range(rounds):
        scan_us = min(scan_us, best_us(scan, 1, 1) / len(scanned))
        one_us = min(one_us, best_us(match, 2, 2) / len(messages))
        batch_us = min(batch_us, best_us(match_batch, 3, 3) / len(messages))
    what = f"{len(given.texts)} expressions, {share:.0%} without a type"
    wanted = WANTED[share]
    return [
        row(f"one message, {what}", "message", one_us, scan_us, wanted),
        row(f"batch of {len(messages)}, {what}", "message", batch_us, scan_us, wanted),
    ]


def adding(count: int) -> Row:
    """The cost of adding an expression to an index of `count` expressions."""
    given = load(count, 0, 0.02, seed=2)
    index: Index[int] = Index()
    for number, text in enumerate(given.texts):
        index.add(number, text)
    more = load(2_000, 0, 0.02, seed=3).texts
    start = time.process_time()
    for number, text in enumerate(more):
        index.add(count + number, text)
    ours = (time.process_time() - start) / len(more) * 1e6
    return row(f"add beside {count}", "expression", ours, 1_000.0, 1.0)


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table for people."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("what", "ours µs", "other µs", "a", "ratio", "wanted", "met"):
        shown.add_column(heading, justify="left" if heading in ("what", "a", "met") else "right")
    for each in rows:
        is_met = "yes" if each["ratio"] >= each["wanted"] else "no"
        shown.add_row(
            each["name"],
            f"{each['ours']:,.2f}",
            f"{each['theirs']:,.2f}",
            each["unit"],
            f"{each['ratio']:,.1f}",
            f"{each['wanted']:g}",
            is_met,
        )
    return shown


def measure(expressions: int, messages: int, rounds: int, beside: int) -> list[Row]:
    """All rows, with progress on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("parse", total=2 + len(SHARES))
        rows = [parsing(rounds)]
        for share in SHARES:
            progress.update(task, advance=1, description=f"match, {share:.0%} without a type")
            rows += matching(load(expressions, messages, share), share, rounds)
            gc.collect()
        progress.update(task, advance=1, description=f"add beside {beside}")
        rows.append(adding(beside))
    return rows


def main(arguments: list[str]) -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.cores.filters")
    parser.add_argument("--expressions", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=500, help="in a batch")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--rounds", type=int, default=4, help="the best one counts")
    parser.add_argument("--beside", type=int, default=100_000, help="expressions to add one to")
    options = parser.parse_args(arguments)
    facts = run_facts()
    rows = measure(options.expressions, options.messages, options.rounds, options.beside)
    Console(width=140).print(table(rows))
    if options.json:
        write_json(options.json, facts, rows=rows)


if __name__ == "__main__":
    main(sys.argv[1:])
