"""A SparkSession in order: Java, Python workers, settings, and no noise on the terminal.

    with raftmq.pipeline.session() as spark:
        spark.read.format("raftmq").option("subscribe", "orders").load().count()

Spark's processes write into one file, `log_path()`, and never to the terminal: Java and the Python
workers inherit the standard error that they are started with, so standard error is that file while
they start.

Left out: Spark Connect, which needs more packages and starts no faster.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from . import class_archive, java, spark_home
from .errors import PipelineError
from .folders import cache_folder, log_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES_MAX = 3
"""Runs of a task that fails, at most: a leader may change while the task reads."""
LOG_BYTES_MAX = 16 * 1024 * 1024
"""The next session overwrites a log longer than this."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_FILES = "org.apache.spark.sql.execution.streaming.checkpointing"

SETTINGS = {
    # Without this setting dates depend on the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
    # Without this setting Spark refuses a source that takes over filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    # This class saves a third of a micro-batch's time on a local disk. Spark notices a second
    # driver of a checkpoint less surely: an option `job` fences the older driver
    # (docs/pipeline/source.md).
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_FILES}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # On a machine that is busy a worker takes longer to start than the 15 s that Java waits for it.
    "spark.python.authenticate.socketTimeout": "120s",
    # Stopping a query within a callback overflows a smaller stack.
    _JAVA_OPTIONS: "-Xss8m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""The settings of every session unless the caller gives others: Spark's name → value."""

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""On one machine nothing listens on the network."""


def session(
    app: str = "raftmq",
    *,
    master: str | None = None,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A SparkSession that reads and writes raftmq, made or found. Takes some seconds.

    Use it as `with session() as spark:`, which stops it at the end. A process that has a session
    already gets that one, and only `settings` that may change while it runs are changed.

    Args:
        app: its name.
        master: where it runs: `local[4]`, `spark://host:7077`, …; None: on this machine, with all
            its cores, and each task that fails is tried three times.
        memory: of the driver's Java, which on one machine does all the work.
        settings: Spark's settings by name, before the usual ones (`SETTINGS`).

    Raises:
        PipelineError: pyspark is not installed, there is no Java, or Spark did not start.
    """
    if find_spec("pyspark") is None:
        raise PipelineError("Spark is not installed", "pip install 'raftmq[spark]'")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    master = master or f"local[{cores},{TRIES_MAX}]"
    is_local = master.startswith("local")
    builder = SparkSession.builder.appName(app).master(master)
    builder = builder.config("spark.driver.memory", memory)
    builder = builder.config("spark.sql.shuffle.partitions", str(cores))
    chosen = {**SETTINGS, **(_LOCAL if is_local else {}), **(settings or {})}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    if SparkSession.getActiveSession() is not None:
        return builder.getOrCreate()
    if is_local:
        # Workers would take whatever `python3` is on the PATH.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    cache = cache_folder()
    found = java.find(cache)
    os.environ["JAVA_HOME"] = str(found.home)
    if is_local:
        os.environ["SPARK_HOME"] = str(spark_home.find(cache))
        kept = class_archive.flags(class_archive.kept(found, spark_home.find(cache), cache))
        builder = builder.config(_JAVA_OPTIONS, f"{chosen[_JAVA_OPTIONS]} {kept}")
    with _stderr_into(log_path()):
        try:
            spark = builder.getOrCreate()
        except PySparkRuntimeError as error:
            message = f"Spark did not start: {str(error).partition(chr(10))[0]}"
            raise PipelineError(message, f"Spark's output is in {log_path()}") from error
        spark.sparkContext.setLogLevel("WARN")
    return spark


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Inside, standard error is this file, for this process and those that it starts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_long = path.exists() and path.stat().st_size > LOG_BYTES_MAX
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb" if is_long else "ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
