"""Spark's folder as its Java sees it: the installed one without Python's half.

Java puts `$SPARK_HOME/python/lib/pyspark.zip` before all else on the path of each Python process
that it starts, and each process compiles the modules of a zip again. Below a folder that links to
the other parts alone, Python loads the installed pyspark, which is compiled once: this saves a
quarter of a second a process, and a first query starts four processes that load pyspark.
"""

import hashlib
import os
from pathlib import Path

_PARTS = ("bin", "jars")
"""Spark's start scripts, and its classes."""


def find(cache: Path) -> Path:
    """The value for `SPARK_HOME` on this machine: the one that is set, or a folder of links.

    Args:
        cache: the folder of files that can be made again.
    """
    given = os.environ.get("SPARK_HOME")
    return Path(given) if given else link(cache)


def link(cache: Path) -> Path:
    """Make the folder of links, and return its path."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    home = cache / "spark" / hashlib.sha256(bytes(installed)).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        if not (home / part).exists():
            # Several processes may start at once: each puts a link of its own in place.
            made = home / f"{part}.{os.getpid()}"
            made.symlink_to(installed / part)
            made.replace(home / part)
    return home
