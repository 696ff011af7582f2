"""Spark's folder as its Java sees it: the installed one without Python's half.

Java puts `$SPARK_HOME/python/lib/pyspark.zip` before all else on the path of each Python process
that it starts, and what comes from a zip is compiled each time. A folder that links to the rest
alone leaves the installed pyspark, compiled once: a quarter of a second a process, and a first
query starts four that load it.
"""

import hashlib
import os
from pathlib import Path

_PARTS = ("bin", "jars")
"""What starts Spark, and what it is."""


def find(cache: Path) -> Path:
    """What `SPARK_HOME` has to be on this machine: what it is, or a folder of links.

    Args:
        cache: the folder of what can be made again.
    """
    given = os.environ.get("SPARK_HOME")
    return Path(given) if given else link(cache)


def link(cache: Path) -> Path:
    """Make the folder of links; the path that it has."""
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
