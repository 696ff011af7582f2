"""`raftmq bench`: measure a cluster with a load of one's own choice."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from raftmq.cli.lazy import HintedGroup
from raftmq.cli.output import note, output_option
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import DURATION, SIZE

if TYPE_CHECKING:
    from .loads import Load

T = TypeVar("T")


@click.group(cls=HintedGroup)
def bench() -> None:
    """Measure a cluster.

    Each run makes a topic of its own and deletes it, unless --topic names one. Latencies are those
    of batches, from hand-over to answer; with --rate they count from when a batch was due.
    """


def _load_options(
    *, batch: int, window: int, rate: float | None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a load, with the defaults of one kind of benchmark."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
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
        def wrapper(session: Session, /, output: str, plot: Path | None, **load: Any) -> None:
            from .loads import Load
            from .report import check_plot

            check_plot(plot)
            whole = Load(url=session.url, timeout=session.timeout, **load)
            command(session, whole, output, plot)

        # Click takes the command's name and help from these.
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        return wrapper

    return decorate


@bench.command()
@_load_options(batch=100, window=64, rate=None)
def produce(session: Session, load: "Load", output: str, plot: Path | None) -> None:
    """Send batches, each answered when a majority has it on disk."""
    from . import loads

    _report("produce", load, *_run(session, load, loads.produce), output, plot)


@bench.command()
@_load_options(batch=100, window=64, rate=None)
def consume(session: Session, load: "Load", output: str, plot: Path | None) -> None:
    """Read a topic that was filled for --duration before; only the reading is measured."""
    from . import loads

    _report("consume", load, *_run(session, load, loads.consume), output, plot)


@bench.command()
@_load_options(batch=1, window=16, rate=500.0)
def e2e(session: Session, load: "Load", output: str, plot: Path | None) -> None:
    """Time messages from producer to consumer, at a steady --rate."""
    from . import loads

    if load.size < 8:
        raise click.UsageError("--size must be at least 8: a message carries its time")
    _report("e2e", load, *_run(session, load, loads.e2e), output, plot)


@bench.command()
@_load_options(batch=1, window=1, rate=None)
def raft(session: Session, load: "Load", output: str, plot: Path | None) -> None:
    """Time single awaited messages; count Raft entries and fsyncs."""
    from . import loads

    record, seconds, log = _run(session, load, loads.raft)
    _report("raft", load, record, seconds, output, plot, log=log)


def _run(session: Session, load: "Load", run: "Callable[[Load], Awaitable[T]]") -> T:
    return session.run_alone(lambda: run(load))


def _report(
    kind: str,
    load: "Load",
    record: Any,
    seconds: float,
    output: str,
    plot: Path | None,
    **more: dict[str, Any],
) -> None:
    from . import report

    result = report.figures(kind, record, seconds=seconds, size=load.size, settings=load.settings())
    report.show({**result, **more}, output)
    if plot is not None:
        report.plot(plot, record, f"raftmq bench {kind}, {load.size} B, batches {load.batch}")
        note(f"drew {plot}")
