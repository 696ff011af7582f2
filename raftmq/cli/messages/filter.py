"""`raftmq filter`: the meaning of a filter, its place in the index, and the messages it matches.

No cluster is needed: the command reads and evaluates a filter as a broker does.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.output import Result, Table, note, output_option, print_line, with_output
from raftmq.cli.values import PROPERTY
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.cli.values import Scalar
    from raftmq.filters import Filter
    from raftmq.filters.scalar import Row

_GUIDE = "docs/filters.md describes filters; a tag stands alone, a text in quotes"
_INTEGER_BITS = 63


@click.group("filter", cls=HintedGroup)
def filter_() -> None:
    """Explain filters, and test them on a file."""


@filter_.command()
@click.argument("expression")
@click.option(
    "-p",
    "--prop",
    "props",
    type=PROPERTY,
    multiple=True,
    help='A property of a sample message; numbers, true and false are typed, "7" is text (repeat).',
)
@click.option("-t", "--tag", help="The tag of the sample message.")
@with_output
def explain(expression: str, props: "Sequence[tuple[str, Scalar]]", tag: str | None) -> Result:
    """Show the meaning of a filter, and its place in the index of subscriptions.

    The command also shows whether a sample message matches, and why: the message of --prop and
    --tag, or a message that the index finds.

    \b
    raftmq filter explain "type = 'paid' AND (amount > 5 OR vip = TRUE)"
    raftmq filter explain "NOT city = 'Paris'" -p city=Rome
    raftmq filter explain 'price == 3 && region != "cn" || coupon == nil'
    """
    from raftmq.filters.explain import sample

    found = _compile(expression)
    row = _row(dict(props), tag) if props or tag is not None else sample(found.formula)
    return _explained(found, row)


@filter_.command()
@click.argument("expression")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--only", is_flag=True, help="Print the lines that match, as they are.")
@output_option()
def test(expression: str, file: str, only: bool, output: str) -> None:
    """Test which messages of a file match a filter.

    FILE (- is stdin) has one JSON object per line: the properties of a message, its tag as TAGS.
    The outcome is unknown if a property is absent, or of a type that does not compare.

    \b
    raftmq filter test "amount > 5" messages.jsonl
    raftmq consume orders -o json | jq -c .props | raftmq filter test "amount > 5" - --only
    """
    from raftmq.filters.explain import outcome

    found = _compile(expression)
    counts = {"true": 0, "false": 0, "unknown": 0}
    with click.open_file(file, "rb") as stream:
        for number, text, row in _rows(stream, file):
            verdict = outcome(found.formula, row)
            counts[verdict] += 1
            if only and verdict != "true":
                continue
            # Printed line by line: the input may be a pipe without an end.
            if output == "json":
                print_line({"line": number, "outcome": verdict, "props": json.loads(text)})
            else:
                click.echo(text if only else f"{verdict:<7}  {text}")
    note(f"{counts['true']:,} of {counted(sum(counts.values()), 'message')} match")


def _compile(expression: str) -> "Filter":
    from raftmq.filters import FilterSyntaxError
    from raftmq.filters import compile as compile_filter

    try:
        return compile_filter(expression)
    except FilterSyntaxError as error:
        raise Failure(str(error), fix=_GUIDE, code=ExitCode.USAGE) from None


def _row(props: "dict[str, Any]", tag: str | None) -> "Row":
    from raftmq.filters.scalar import plain_row

    return plain_row(props, (*props, "TAGS"), tag)


def _rows(stream: IO[bytes], file: str) -> "Iterator[tuple[int, str, Row]]":
    """Each line with its number and its message; empty lines are passed over."""
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            text = line.decode().strip()
            props = json.loads(text)
        except ValueError as error:
            raise _bad_line(file, number, f"not JSON: {error}") from None
        if not isinstance(props, dict):
            raise _bad_line(file, number, "not an object")
        for name, value in props.items():
            if not isinstance(value, str | int | float | None):
                raise _bad_line(file, number, f"property {name!r} is a list or an object")
            if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
                raise _bad_line(file, number, f"property {name!r} does not fit into 64 bits")
        tag = props.pop("TAGS", None)
        yield number, text, _row(props, None if tag is None else str(tag))


def _bad_line(file: str, number: int, problem: str) -> Failure:
    fix = 'give each message as one line, as {"amount": 7, "city": "Paris", "TAGS": "paid"}'
    return Failure(f"{file}, line {number}: {problem}", fix=fix)


def _explained(found: "Filter", row: "Row") -> Result:
    from raftmq.filters.explain import (
        buckets,
        outcome,
        placing,
        row_text,
        tree_lines,
        value_text,
        verdict_lines,
    )

    placed = buckets(found.formula)
    tree, reason = list(tree_lines(found.formula)), list(verdict_lines(found.formula, row))
    document = {
        "filter": str(found),
        "properties": list(found.names),
        "tree": tree,
        "is_indexed": placed is not None,
        "placing": placing(found.formula),
        "buckets": placed or (),
        "sample": dict(row),
        "outcome": outcome(found.formula, row),
        "reason": reason,
    }
    shown: list[Table | str] = [
        *_section("means", [str(found)]),
        *_section("tree", tree),
        *_section("index", [placing(found.formula)]),
    ]
    if placed:
        rows = [(f"  {each.name}", value_text(each.key), each.residual) for each in placed]
        shown.append(Table(["  PROPERTY", "VALUE", "THEN EVALUATED"], rows))
    return Result(document, [*shown, *_section(f"sample message: {row_text(row)}", reason)])


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)]
