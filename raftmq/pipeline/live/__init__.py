"""Windows of event time over topics, as they happen: to a page in the browser, Parquet, a topic.

Start reading at `board` (what is shown), then `windows` (the rules), `partials` (what Spark does),
`job` (the order of things, and restarts), `store`, `files`, `topic`, and `page` with `server`.

Invariants:
- Counts and sums of whole numbers are exact: each message is counted once, whatever is killed.
- Nothing here makes a Python object a message: Spark sums up, the driver adds sums.
"""

from .board import Board, Named, load, parse
from .job import Done, Live, Planned, Source, plan, run
from .server import Feed, PageServer
from .topic import publisher

__all__ = [
    "Board",
    "Done",
    "Feed",
    "Live",
    "Named",
    "PageServer",
    "Planned",
    "Source",
    "load",
    "parse",
    "plan",
    "publisher",
    "run",
]
