"""Spark's classes, parsed once and kept in a file that Java maps: Spark starts in less time.

Java reads, checks and links thousands of classes until Spark's first query has run. `keep` has
it do that once, in a run that uses what pipelines use, and write the result at its end; `session`
passes the file to each Java of that kind. Java checks by itself that a file fits, and goes on
without one that does not.

| step | what |
|---|---|
| `keep` | starts `class_archive_run` as a process of its own, whose Java writes the classes down |
| `class_archive_run` | runs a batch, a stream and a sink of raftmq on a cluster, and ends |
| `keep` | puts the file in its place, once Java has closed the pipe that they share |

Invariants:
- A file that is there is whole: it gets its name at the end.
- A place (Java, and the folder and version of Spark) has one file: another installation's, 200 MB,
  goes when the next is written.

Sources: *dynamic archives* of class data sharing, JEP 350.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import java
from .errors import PipelineError

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Java's own messages: errors alone, and away from standard output."""
SECONDS_MAX = 600
"""Seconds until the run that writes the classes is taken to hang."""


def kept(of: java.Java, spark_home: Path, cache: Path) -> Path:
    """The path of the classes of this Spark and Java; the file need not exist.

    Args:
        of: the Java.
        spark_home: where it finds Spark.
        cache: the folder of files that can be made again.
    """
    import pyspark

    place = f"{of.home} {of.version} {spark_home} {pyspark.__version__}"
    # Java refuses a file whose jars have another time or size, as a second installation's have.
    jars = sorted((spark_home / "jars").glob("*.jar"))
    found = [(jar.name, jar.stat().st_mtime_ns, jar.stat().st_size) for jar in jars]
    return cache / "classes" / f"{_digest(place)}-{_digest(str(found))}.jsa"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flags(file: Path) -> str:
    """Java's options to use a file of classes; empty if the file does not exist.

    The options also send Java's warnings to standard error: a warning about a file that does not
    fit would stand on standard output, between a program's results.
    """
    return f'-XX:SharedArchiveFile="{file}" {QUIET}' if file.exists() else ""


def keep(of: java.Java, spark_home: Path, cache: Path, url: str) -> Path:
    """Make the file of classes, or replace it; takes about a minute.

    Args:
        of: the Java that Spark is started with.
        spark_home: where it finds Spark.
        cache: the folder of files that can be made again.
        url: a cluster without topics, which gets two.

    Raises:
        PipelineError: Spark or Java failed, or this Java cannot write its classes down.
    """
    file = kept(of, spark_home, cache)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        written = Path(folder) / file.name
        command = [sys.executable, "-m", "raftmq.pipeline.class_archive_run", str(written)]
        # The run has an empty cache: Java writes no classes down while it uses a file of them.
        homes = {"JAVA_HOME": str(of.home), "SPARK_HOME": str(spark_home)}
        other = {"XDG_CACHE_HOME": folder, "RAFTMQ_URL": url}
        ran = _run(command, {**os.environ, **homes, **other})
        if ran.returncode != 0:
            # Java's own stack is indented.
            said = [line for line in ran.stderr.splitlines() if line[:1].strip()]
            message = f"the run of Spark failed: {said[-1] if said else 'no output'}"
            raise PipelineError(message, "`raftmq pipeline doctor` examines Spark")
        if not written.exists():
            message = f"Java {of.version} ({of.origin}) does not write the archive of its classes"
            fix = "Spark works without; Debian's openjdk-17-jre-headless, for example, writes one"
            raise PipelineError(message, fix)
        written.replace(file)
    place = file.name.partition("-")[0]
    for outdated in file.parent.glob(f"{place}*.jsa"):
        if outdated != file:
            outdated.unlink()
    return file


def _run(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    try:
        # Java ends after Python does: it holds the other end of the pipe until then.
        return subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        message = f"the run of Spark did not end in {SECONDS_MAX} s"
        raise PipelineError(
            message, "end other programs on this machine, or go without the archive"
        ) from error
