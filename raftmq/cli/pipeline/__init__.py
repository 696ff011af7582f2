"""`raftmq pipeline`: jobs on Spark, each a command, whose module is loaded when it is called.

Start reading at `group` (the table of jobs).
"""

from .group import pipeline

__all__ = ["pipeline"]
