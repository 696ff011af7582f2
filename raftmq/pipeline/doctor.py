"""Checks for all that Spark needs, one fact after the other, the cheap ones first."""

import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from . import class_archive, java, spark_home
from .errors import PipelineError, cause_of
from .folders import cache_folder
from .session import session

PACKAGES = {"pyspark": "4.3", "pyarrow": "", "pandas": "2."}
"""Package → the prefix of the versions that serve; empty: any version."""
MEMORY_BYTES_MIN = 3 * 1024**3
"""Enough for a driver with 2 GiB of heap and a Python worker a core."""

_INSTALL = "pip install 'raftmq[spark]'"


class Fact(NamedTuple):
    """One examined thing."""

    check: str
    """Name of the examined thing."""
    is_well: bool
    """Whether a pipeline runs with it."""
    found: str
    """The finding: a version, a path, an amount, or an error."""
    fix: str = ""
    """The remedy; empty: none is needed. A pipeline that runs may be slower without it."""


def examine() -> Iterator[Fact]:
    """All facts, as they are found; the last one starts Spark and takes some seconds."""
    found = list(_packages())
    yield from found
    facts = [_java(), _bash(), _memory()]
    yield from facts
    if all(fact.is_well for fact in (*found, facts[0])):
        yield _classes()
    if all(fact.is_well for fact in (*found, *facts)):
        yield _query()
    else:
        yield Fact("query", False, "not tried", "mend the problems above first")


def _packages() -> Iterator[Fact]:
    for name, begins in PACKAGES.items():
        if find_spec(name) is None:
            yield Fact(name, False, "not installed", _INSTALL)
            continue
        version = metadata.version(name)
        is_well = version.startswith(begins)
        size = f", {_megabytes(name)} MB" if name == "pyspark" else ""
        fix = "" if is_well else f"{_INSTALL} --upgrade: it has to be {begins}*"
        yield Fact(name, is_well, f"{version}{size}", fix)


def _megabytes(package: str) -> int:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    files = Path(spec.origin).parent.rglob("*")
    return round(sum(file.stat().st_size for file in files if file.is_file()) / 1e6)


def _java() -> Fact:
    try:
        found = java.find(cache_folder())
    except PipelineError as error:
        return Fact("java", False, error.message, error.fix)
    return Fact("java", True, f"{found.version} from {found.origin}: {found.home}")


def _classes() -> Fact:
    cache = cache_folder()
    file = class_archive.kept(java.find(cache), spark_home.find(cache), cache)
    if file.exists():
        return Fact("classes", True, f"kept, {file.stat().st_size / 1e6:.0f} MB: {file}")
    fix = "`raftmq pipeline prepare`, once: Spark's first query comes some seconds sooner"
    return Fact("classes", True, "not kept", fix)


def _bash() -> Fact:
    # Spark's own launcher is a bash script.
    found = shutil.which("bash")
    if found is None:
        return Fact("bash", False, "not on the PATH", "install it: Spark is started by a script")
    return Fact("bash", True, found)


def _memory() -> Fact:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return Fact("memory", True, f"unknown on {sys.platform}")
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    found = f"{free / 1024**3:.1f} GiB available"
    if free < MEMORY_BYTES_MIN:
        least = MEMORY_BYTES_MIN / 1024**3
        return Fact("memory", False, found, f"end other programs: Spark needs {least:.0f} GiB")
    return Fact("memory", True, found)


def _query() -> Fact:
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import udf

    try:
        with session("raftmq-doctor") as spark:
            # Through a Python worker, which is what usually is not in order.
            where = udf(lambda _: sys.executable)
            (row,) = spark.range(1).select(where("id").alias("python")).collect()
    except (PipelineError, PySparkException) as error:
        cause = cause_of(error)
        return Fact("query", False, cause.message, cause.fix)
    return Fact("query", True, f"one row, by a worker of {row.python}")
