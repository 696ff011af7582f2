"""`raftmq bench`: measure a cluster with a load of one's own choice."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.lazy import HintedGroup
from raftmq.cli.output import note, output_option, print_result
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import DURATION, SIZE

if TYPE_CHECKING:
    from .loads import Load

Running = Coroutine[Any, Any, tuple[Any, ...]]
"""A load's answers, its seconds, and perhaps figures of the log."""


@click.group(cls=HintedGroup)
def bench() -> None:
    """Measure a cluster.

    Each run makes a topic of its own and deletes it, unless --topic names one. Latencies are those
    of batches, from hand-over to answer; with --rate they count from when a batch was due.
    """


def _load_command(
    *, batch: int, window: int, rate: float | None
) -> Callable[["Callable[[Load], Running]"], Callable[..., int]]:
    """A command that runs a load, with the defaults of one kind of benchmark."""

    def decorate(run: "Callable[[Load], Running]") -> Callable[..., int]:
        @click.option("--size", type=SIZE, default="100", help="Bytes a message.  [default: 100]")
        @click.option("--batch", type=click.IntRange(1, 65_536), default=batch, show_default=True)
        @click.option(
            "--window",
            type=click.IntRange(1, 10_000),
            default=window,
            show_default=True,
            help="Batches under way, for each client.",
        )
        @click.option("--clients", type=click.IntRange(1, 1_000), default=1, show_default=True)
        @click.option(
            "--rate",
            type=click.FloatRange(0, min_open=True),
            default=rate,
            help=f"Messages a second, over all clients.  [default: {rate or 'as fast as it goes'}]",
        )
        @click.option("--duration", type=DURATION, default="10s", help="[default: 10s]")
        @click.option("--topic", help="Use this topic.  [default: one is made and deleted]")
        @click.option("--queues", type=click.IntRange(1), default=8, show_default=True)
        @click.option(
            "--plot",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Draw latency and rate over time: .png, .svg or .pdf.",
        )
        @output_option()
        @with_session
        def command(session: Session, /, output: str, plot: Path | None, **options: Any) -> int:
            from . import report
            from .loads import Load

            report.check_plot(plot)
            load = Load(url=session.url, timeout=session.timeout, **options)
            running = run(load)
            record, seconds, *log = session.run_alone(lambda: running, backend="trio")
            kind, settings = run.__name__, load.settings()
            figures = report.figures(
                kind, record, seconds=seconds, size=load.size, settings=settings
            )
            result = report.result_of({**figures, "log": log[0]} if log else figures)
            # Printed before the plot, which may fail: the figures would be lost.
            code = print_result(result, output)
            if plot is not None:
                title = f"raftmq bench {kind}, {load.size} B, batches {load.batch}"
                report.plot(plot, record, title)
                note(f"drew {plot}")
            return code

        # Click takes the command's name and help from these.
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        return command

    return decorate


@bench.command()
@_load_command(batch=100, window=64, rate=None)
def produce(load: "Load") -> Running:
    """Send batches, each answered when a majority has it on disk."""
    from . import loads

    return loads.produce(load)


@bench.command()
@_load_command(batch=100, window=64, rate=None)
def consume(load: "Load") -> Running:
    """Read a topic that was filled for --duration before; only the reading is measured."""
    from . import loads

    return loads.consume(load)


@bench.command()
@_load_command(batch=1, window=16, rate=500.0)
def e2e(load: "Load") -> Running:
    """Time messages from producer to consumer, at a steady --rate."""
    from . import loads

    if load.size < 8:
        raise click.UsageError("--size must be at least 8: a message carries its time")
    return loads.e2e(load)


@bench.command()
@_load_command(batch=1, window=1, rate=None)
def raft(load: "Load") -> Running:
    """Time single awaited messages; count Raft entries and fsyncs."""
    from . import loads

    return loads.raft(load)
