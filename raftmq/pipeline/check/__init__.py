"""The chaos checkers over histories that are too large for one process: `raftmq pipeline check`.

Start reading at `job` (what is judged and what is stored), then `survey` and `bitmaps` (sets of
messages, a bit a message), then `bag`, `log`, `queues` and `key_order` (the rules).

| checker | judges | how |
|---|---|---|
| `total-queue` | sends, polls and acks as a bag: lost, unexpected, duplicated | bitmaps |
| `log` | sends and polls by offset: what can go wrong with a log | joins by message; a queue at a |
| | | time by the functions of `raftmq.checkers` |
| `key-order` | order by key in ordered groups; only if asked for | windows |

These checkers give the verdicts and the anomalies of the checkers of the same names in
`raftmq.checkers`; a property test compares both on random histories. The rules of a log that look
at one queue are these checkers' own functions (`queues`). The other rules are written twice:

- The bag has no key to cut it by: a loss is classed among all messages of its sender. The checker's
  arrays take some 400 bytes a message, and here a message is a bit: see the decision on the limits
  of the pipeline for 10^8 operations.
- Whether a message was read, stood at two offsets or was never sent is known once its rows are
  joined by value, wherever they were; nothing is left to judge then.
- Order by key is one window over a row a message, after the same joins.

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
