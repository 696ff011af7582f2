"""Where the pipeline keeps its files on this machine."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of files that can be made again, `$XDG_CACHE_HOME/raftmq` or `~/.cache/raftmq`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "raftmq"


def log_path() -> Path:
    """The file for what Spark's processes would write to the terminal."""
    return cache_folder() / "spark.log"
