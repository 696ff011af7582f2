"""The report: one HTML file, or a PNG of it, that shows a run and explains its verdict.

Start reading at `case` (the subject of a page), then `page` (the words) and `drawing` (the data of
the figures, which `drawing.js` draws).

| module | makes |
|---|---|
| `case` | a run or a history, judged, with each anomaly's minimal sub-history |
| `timeline` | roles of nodes and faults as spans of time |
| `operations` | lanes of operations, latency and rates; samples where operations are too many |
| `drawing`, `drawing.js`, `page.css` | the figures |
| `page` | the file, with `raftmq.pages` |
| `browser` | the file as a browser shows it |
| `artifacts` | a run as a folder, and back |

Invariants:
- A page fetches nothing and needs no other file.
- The verdict is the run's or the checkers'; the report itself judges nothing.

Sources: Jepsen's timeline and latency plots, Elle's and Porcupine's pictures of anomalies.
"""

from raftmq.chaos.report.artifacts import NotAnOutcome, read_outcome, write_outcome
from raftmq.chaos.report.browser import NoBrowser, picture
from raftmq.chaos.report.case import Case, Finding, of_history, of_outcome
from raftmq.chaos.report.page import page

__all__ = [
    "Case",
    "Finding",
    "NoBrowser",
    "NotAnOutcome",
    "of_history",
    "of_outcome",
    "page",
    "picture",
    "read_outcome",
    "write_outcome",
]
