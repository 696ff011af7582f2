"""Consumer groups that pop, delayed messages and transactions, judged from the committed log by a
second, slower machine.

Start reading at `log` (the comparison, record by record), then `model` (the second machine), and
`withheld` (its part for messages that are stored before they may be seen).
`random_log` writes logs by chance: calls that clients might make, without a broker; `play` makes a
run of one.

| what | from |
|---|---|
| `raftmq.checkers.check_pop`, `check_withheld` | clients' histories alone |
| `PopLog` here | the servers' log alone |
| `PopLog.why_strange` | both: what a client saw must be in the log |

Nothing here needs an event loop.
"""

from raftmq.chaos.ledger.log import PopBreach, PopLog
from raftmq.chaos.ledger.play import play
from raftmq.chaos.ledger.random_log import RandomLog

__all__ = ["PopBreach", "PopLog", "RandomLog", "play"]
