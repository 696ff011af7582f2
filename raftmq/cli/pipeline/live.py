"""`raftmq pipeline live`: windows over topics in real time, on a page, in files, in a topic."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.output import Meter, Result, Table, duration_text, note, with_output
from raftmq.cli.pipeline.starter import Starter, make_folder, with_spark
from raftmq.cli.values import DURATION
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.pipeline.live import Board, Done, Planned, Source

_FIELDS = ("window", "lateness", "ahead", "event", "json", "where", "by", "sum", "distinct", "top",
           "order")  # fmt: skip
"""Fields of a board that have an option of their name."""


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--board",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A board as TOML; options replace its fields.",
)
@click.option("--window", metavar="DURATION", help="Length of a window.  [default: 1s]")
@click.option(
    "--lateness",
    metavar="DURATION",
    help="How long after its end a window waits for late messages.  [default: 2s]",
)
@click.option(
    "--ahead",
    metavar="DURATION",
    help="Messages that happened later than this after they were stored are left out.  "
    "[default: 1m]",
)
@click.option(
    "--event",
    metavar="EXPR",
    help="When a message happened: timestamp, created, json.at, ….  [default: timestamp]",
)
@click.option("--json", metavar="FIELDS", help="The body's fields: 'cents bigint, buyer string'.")
@click.option("--where", metavar="EXPR", help="Only messages for which this is true.")
@click.option("--by", multiple=True, metavar="EXPR", help="Group by this; may be repeated.")
@click.option("--sum", multiple=True, metavar="EXPR", help="A sum: 'json.cents as cents'.")
@click.option(
    "--distinct", multiple=True, metavar="EXPR", help="Number of different values, about."
)
@click.option(
    "--top", type=int, metavar="N", help="Keep this many groups a window.  [default: all]"
)
@click.option("--order", metavar="NAME", help="The measure to rank groups by.  [default: count]")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where windows, files and checkpoint are kept.",
)
@click.option(
    "--page", type=click.IntRange(0, 65_535), metavar="PORT", help="Serve a page here; 0: any port."
)
@click.option("--into", metavar="TOPIC", help="Send closed windows there as JSON, each once.")
@click.option("--once", is_flag=True, help="Count what there is now, close all windows, and end.")
@click.option(
    "--every",
    type=DURATION,
    default="0s",
    metavar="DURATION",
    help="Between the starts of two batches.  [default: one after the other]",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where a new board begins.",
)
@click.option(
    "--job",
    metavar="NAME",
    help="Progress is that of the group spark-NAME.  [default: live-<name of DIR>]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be counted, and do nothing.")
@with_output
@with_spark
def live(
    starter: Starter,
    /,
    topics: tuple[str, ...],
    board: Path | None,
    out: Path,
    page: int | None,
    into: str | None,
    once: bool,
    every: float,
    start: str,
    job: str | None,
    dry_run: bool,
    **fields: Any,
) -> Result:
    """Count, sum and rank messages in windows of time, in real time.

    Closed windows are Parquet files in DIR/windows; --page shows closed and open windows in a
    browser. Ctrl-C ends the command; the same command later goes on. Expressions are SQL over the
    columns topic, queue, offset, key, tag, body, props, created, timestamp, and json with --json.

    \b
    raftmq pipeline live trades --out trades-live --page 7480 --by tag \\
        --json 'cents bigint, buyer string' --sum 'json.cents as cents' --order cents
    raftmq pipeline live --board trades.toml --out trades-live --once
    """  # fmt: skip
    from raftmq.pipeline.live import Source, load, parse, plan

    with starter.explaining():
        table = load(board) if board is not None else {}
        table |= {name: _plain(fields[name]) for name in _FIELDS if fields[name] not in (None, ())}
        if topics:
            table["topics"] = list(topics)
        read = parse(table)
        source = Source(starter.url, start, job or f"live-{out.resolve().name}")
        planned = plan(source, read, out, into)
    if dry_run:
        return _plan(read, planned)
    done = _run(starter, read, source, out, page=page, into=into, is_once=once, every=every)
    cells = [f"{value:,}" for value in done.values()]
    return Result(done, [Table([">" + name for name in done], [cells])])


def _run(
    starter: Starter, board: "Board", source: "Source", out: Path, *,
    page: int | None, into: str | None, is_once: bool, every: float,
) -> dict[str, int]:  # fmt: skip
    from raftmq import blocking
    from raftmq.pipeline.live import Feed, PageServer, publisher, run

    done = {"messages": 0, "late": 0, "unusable": 0, "closed": 0}
    make_folder(out)
    feed = Feed() if page is not None else None
    with ExitStack() as stack:
        if feed is not None and page is not None:
            # Opened before Spark starts, which takes seconds: the port may be taken.
            with starter.explaining():
                note(f"the page: {stack.enter_context(PageServer(feed, page)).url}")
        spark = stack.enter_context(starter.session("live"))
        topics = {name: topic.id for name, topic in source.topics(board.topics).items()}
        meter = stack.enter_context(Meter(f"live: {', '.join(board.topics)}"))

        def tell(one: "Done") -> None:
            for name in done:
                done[name] += getattr(one, name)
            words = f"live: {counted(done['closed'], 'window')} closed, {done['late']:,} late"
            meter.advance(one.messages, f"{words}, oldest shown {duration_text(one.age)}")

        publish = None
        if into is not None:
            mq = stack.enter_context(blocking.connect(starter.url))
            publish = publisher(mq, into, starter.url, board)
        stream = source.stream(spark, board)
        try:
            run(stream, board, out, topics, is_once=is_once, every=every, feed=feed,
                publish=publish, tell=tell)  # fmt: skip
        except KeyboardInterrupt:
            if is_once:
                raise
    return done


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _plan(board: "Board", planned: "list[Planned]") -> Result:
    from raftmq.pipeline.live.board import plain

    fields = [
        ["windows", f"of {duration_text(board.window_ms / 1000)} by {board.event}"],
        ["closed", f"{duration_text(board.lateness_ms / 1000)} after their end"],
        ["groups", ", ".join(board.groups) or "one for all"],
        ["measures", ", ".join(board.measures)],
        ["kept", f"the top {board.top} by {board.order}" if board.top else "all groups"],
    ]
    rows = [[one.topic, one.queue, one.start, one.end, one.end - one.start] for one in planned]
    columns = ["topic", ">queue", ">from", ">end", ">messages"]
    return Result(
        {"board": plain(board), "queues": planned},
        [Table(["field", "value"], fields), "", Table(columns, rows)],
        notes=["nothing was changed"],
    )
