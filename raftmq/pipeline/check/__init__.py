"""The chaos checkers over histories that are too large for one process: `raftmq pipeline check`.

Start reading at `job` (what is judged and what is stored), then `survey` and `bitmaps` (sets of
messages, a bit a message), then `bag`, `log` and `key_order` (the rules).

| checker | judges | how |
|---|---|---|
| `total-queue` | sends, polls and acks as a bag: lost, unexpected, duplicated | bitmaps |
| `log` | sends and polls by offset: what can go wrong with a log | windows |
| `key-order` | order by key in ordered groups; only if asked for | windows |

These checkers give the verdicts and the anomalies of the checkers of the same names in
`raftmq.checkers`; a property test compares both on random histories.

Left out: consumer groups that pop, withheld messages and registers, whose checkers search;
`raftmq chaos check` judges these.
"""

from .history import Recorded, find
from .job import Report, as_json, judge, store, worst
from .rules import CHECKERS, Judged, Rules

__all__ = [
    "CHECKERS",
    "Judged",
    "Recorded",
    "Report",
    "Rules",
    "as_json",
    "find",
    "judge",
    "store",
    "worst",
]
