"""A job's Spark: the options of its command, the start, and errors as two lines.

    @pipeline.command()
    @with_spark
    def archive(starter: Starter, ...) -> None:
        with starter.session("archive") as spark:
            ...

Invariants:
- A command that plans (`--dry-run`) and needs no Spark never starts it.
- An error inside Spark leaves the block as a `Failure` that names the cause, not its layers.
- Libraries log to the file of Spark's own log, not to the terminal: Py4J logs a traceback of each
  call that Ctrl-C ends.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from raftmq.cli.exits import ExitCode, Failure, explained
from raftmq.cli.output import note
from raftmq.cli.session import url_option
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")


_OWN_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of PySpark that write each refused query to stderr, as JSON with Java's stack, and do not
propagate to the root logger."""


@dataclass(frozen=True, slots=True)
class Starter:
    """A job's cluster and Spark."""

    url: str
    """`raftmq://host:port[,host:port...]`."""
    master: str | None
    """Spark's master; None: this machine."""
    memory: str
    """Memory of the driver's Java, as `2g`."""

    @contextmanager
    def session(self, job: str) -> "Iterator[SparkSession]":
        """Start Spark, and stop it at the end. The start takes some seconds, which a note says.

        Raises:
            Failure: instead of errors of Spark, its workers or the client inside.
        """
        from raftmq import pipeline
        from raftmq.pipeline.folders import log_path

        # Sources and sinks without an option `url` take it from here, workers too.
        os.environ["RAFTMQ_URL"] = self.url
        note("starting Spark")
        with self.explaining():
            spark = pipeline.session(f"raftmq-{job}", master=self.master, memory=self.memory)
            with _logged_into(log_path()), spark:
                yield spark

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise errors of the pipeline, the client and Spark inside as a `Failure`."""
        from raftmq.pipeline import PipelineError

        try:
            yield
        except PipelineError as error:
            raise Failure(error.message, fix=error.fix) from error
        except RaftmqError as error:
            raise explained(error, url=self.url) from error
        except Exception as error:
            if not _is_of_spark(error):
                raise
            if _is_interruption(error):
                raise KeyboardInterrupt from error
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Failure:
        from raftmq.pipeline.errors import cause_of

        cause = cause_of(error)
        if cause.message.startswith("Unavailable: "):
            fix = f"is a cluster running at {self.url}? `raftmq cluster status` examines it"
            return Failure(cause.message, fix=fix, code=ExitCode.UNREACHABLE)
        return Failure(cause.message, fix=cause.fix)


@contextmanager
def explaining() -> Iterator[None]:
    """Raise a `PipelineError` as a `Failure`; for commands without a cluster and Spark."""
    from raftmq.pipeline import PipelineError

    try:
        yield
    except PipelineError as error:
        raise Failure(error.message, fix=error.fix) from error


def make_folder(folder: Path) -> None:
    """Make the folder of --out; called before Spark starts, which takes seconds.

    Raises:
        Failure: the folder cannot be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("it cannot be written to")
    except OSError as error:
        fix = "let this user make it and write to it, or give --out another"
        raise Failure(f"the folder {folder} cannot be used: {error}", fix=fix) from error


@contextmanager
def _logged_into(path: Path) -> Iterator[None]:
    """Append the log of libraries inside to this file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a handler, `logging` writes to the terminal.
    handler = logging.FileHandler(path)
    logging.getLogger().addHandler(handler)
    try:
        with ExitStack() as stack:
            for name in _OWN_LOGGERS:
                stack.enter_context(_alone(name, path))
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


@contextmanager
def _alone(name: str, path: Path) -> Iterator[None]:
    """Append the messages of one of PySpark's loggers inside to this file only."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(name)
    # The logger gets its own handler, as PySpark sets the format of each.
    handler, before = logging.FileHandler(path), logger.handlers[:]
    for other in before:
        logger.removeHandler(other)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
        for other in before:
            logging.Logger.addHandler(logger, other)


def _is_of_spark(error: Exception) -> bool:
    # Without pyspark no error can be Spark's.
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        return False
    return isinstance(error, PySparkException | Py4JError)


def _is_interruption(error: BaseException | None) -> bool:
    """True if Ctrl-C caused the error: Py4J raises an error of its own when it is interrupted while
    it reconnects."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def with_spark(command: Callable[Concatenate[Starter, P], T]) -> Callable[..., T]:
    """Give a command `--url`, `--master` and `--memory`, and a `Starter` as its first argument."""

    @url_option
    @click.option(
        "--master",
        metavar="MASTER",
        help="Where Spark runs: local[4], spark://host:7077, ….  [default: this machine]",
    )
    @click.option(
        "--memory",
        default="2g",
        show_default=True,
        metavar="SIZE",
        help="Memory of Spark's driver, which on one machine does all the work.",
    )
    @wraps(command)
    def wrapper(url: str, master: str | None, memory: str, *args: P.args, **kwargs: P.kwargs) -> T:
        return command(Starter(url, master, memory), *args, **kwargs)

    return wrapper
