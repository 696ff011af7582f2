"""`raftmq pipeline reconcile`: do two sides agree, and was more sold than there was?"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.output import Note, Result, Table, note, output_option, print_result

from .starter import Starter, with_spark

if TYPE_CHECKING:
    from raftmq.pipeline.reconcile import Outcome, Side

SHOWN = 10
"""Most keys of each table that are printed."""


@click.command()
@click.argument("left")
@click.argument("right", required=False)
@click.option("--left-key", default="key", show_default=True, metavar="SQL", help="Of its rows.")
@click.option("--left-amount", default="1", show_default=True, metavar="SQL", help="What adds up.")
@click.option("--left-id", default="", metavar="SQL", help="Rows that have it in common are one.")
@click.option("--left-order", default="", metavar="SQL", help="In which order they were sold.")
@click.option("--right-key", default="key", show_default=True, metavar="SQL", help="Of its rows.")
@click.option("--right-amount", default="1", show_default=True, metavar="SQL", help="What adds up.")
@click.option("--right-id", default="", metavar="SQL", help="Rows that have it in common are one.")
@click.option("--oversell", metavar="STOCK", help="A third side: what there was of each key.")
@click.option("--stock-key", default="key", show_default=True, metavar="SQL", help="Of its rows.")
@click.option("--stock-amount", default="amount", show_default=True, metavar="SQL", help="Pieces.")
@click.option("--out", type=click.Path(path_type=Path), help="Write tables and verdict there.")
@click.option("--dry-run", is_flag=True, help="Show what would be read up to where; start nothing.")
@output_option()
@with_spark
def reconcile(
    starter: Starter,
    /,
    left: str,
    right: str | None,
    oversell: str | None,
    out: Path | None,
    dry_run: bool,
    output: str,
    **said: str,
) -> int:
    """Compare two sides key by key: the sums of their amounts have to be equal.

    A side is topic:NAME, archive:PATH[?topic=NAME], parquet:PATH, csv:PATH or
    sqlite:PATH?table=NAME. Keys and amounts are SQL over its columns; those of messages have
    body_text too, the body as text. The exit code is 5 if anything differs or is oversold.

    \b
    raftmq pipeline reconcile topic:orders topic:payments \\
        --left-amount "get_json_object(body_text, '$.cents')" \\
        --right-amount "get_json_object(body_text, '$.cents')"
    raftmq pipeline reconcile topic:orders --oversell "sqlite:shop.db?table=stock" \\
        --left-key "get_json_object(body_text, '$.sku')" --stock-key sku --stock-amount pieces
    """
    from raftmq.pipeline.reconcile import reconcile as reconcile_sides
    from raftmq.pipeline.reconcile import store

    if right is None and oversell is None:
        fix = "name a second side, or a stock with --oversell"
        raise Failure("there is nothing to compare with", fix=fix, code=ExitCode.USAGE)
    with starter.explaining():
        # Pinned before anything is read: a side that is read twice must be the same both times.
        one = _side(left, "left", said)
        other = None if right is None else _side(right, "right", said)
        stock = None if oversell is None else _side(oversell, "stock", said)
        one = one.pinned(starter.url)
        other = other and other.pinned(starter.url)
        stock = stock and stock.pinned(starter.url)
    if dry_run:
        plan = _plan([side for side in (one, other, stock) if side is not None])
        return print_result(plan, output)
    with starter.session("reconcile") as spark:
        outcome = reconcile_sides(spark, one, other, stock=stock, told=note)
        if out is not None:
            note(f"writing {out}")
            store(outcome, out)
        code = ExitCode.OK if outcome.is_agreed else ExitCode.VIOLATION
        # Printed before Spark stops: Spark makes the tables for people.
        return print_result(Result(outcome.as_json(), _shown(outcome), code=code), output)


def _side(text: str, which: str, said: dict[str, str]) -> "Side":
    from raftmq.pipeline.reconcile import Side

    return Side.parse(
        text,
        key=said[f"{which}_key"],
        amount=said[f"{which}_amount"],
        identity=said.get(f"{which}_id", ""),
        order=said.get(f"{which}_order", ""),
    )


def _plan(sides: "list[Side]") -> Result:
    names = ("side", "key", "amount", "up_to")
    rows = [(side.name, side.key, side.amount, side.ends or "as it is") for side in sides]
    return Result(
        [dict(zip(names, row, strict=True)) for row in rows],
        [Table(["SIDE", "KEY", "AMOUNT", "UP TO"], rows)],
    )


def _shown(outcome: "Outcome") -> Iterator[Table | str]:
    rows = [(name.replace("_", " "), f"{count:,}") for name, count in outcome.counts.items()]
    yield Table(["FOUND", ">COUNT"], rows)
    for name, table in outcome.tables.items():
        if first := table.orderBy("key").limit(SHOWN).collect():
            cells = [[_cell(cell) for cell in row] for row in first]
            headings = [column.replace("_", " ").upper() for column in table.columns]
            yield Table(headings, cells, title=name)
    yield Note("the sides agree" if outcome.is_agreed else "the sides differ")


def _cell(value: object) -> str:
    """A cell as text; decimals without trailing zeros."""
    text = "-" if value is None else f"{value:f}" if hasattr(value, "as_tuple") else str(value)
    return text.rstrip("0").rstrip(".") if hasattr(value, "as_tuple") else text
