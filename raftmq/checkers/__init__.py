"""Was a promise broken? Functions from a history, or from evidence, to a report.

Start reading at `history` (the input), then `verdict` (the reports), `total_queue` (the simplest
checker), and `check` (the command line).

    >>> from raftmq.checkers import Recorder, check_total_queue
    >>> recorder = Recorder()
    >>> send = recorder.invoke(0, "send", value=recorder.unique_value())
    >>> recorder.ok(send)
    >>> poll = recorder.invoke(1, "poll")
    >>> recorder.ok_many(poll, [])
    >>> report = check_total_queue(recorder.history())
    >>> report.verdict.value, sorted(report.names())
    ('invalid', ['lost-postfix'])

| checker | judges |
|---|---|
| `check_total_queue` | sends and polls as a bag: lost, unexpected, duplicated |
| `check_log` | sends and polls by offset: the anomalies of a log |
| `check_key_order` | order by key in ordered groups |
| `check_pop` | consumer groups that pop: leases, retries, dead letters, order |
| `check_withheld` | delayed messages, and those of transactions |
| `check_claims` | claims: one holder of a key at a time |
| `check_hand_off` | of each input one output, by the transaction that acknowledges it |
| `check_resets` | groups that are moved: all comes again, and old tokens are fenced |
| `check_instances` | broadcast groups: each instance gets all, in order |
| `check_topic_lives` | topics that come and go under one name |
| `check_linearizability` | registers, texts, sets, queues, locks: is there an order at all |
| `check_zones` | the same for registers of unique values, in n log n |
| `check_evidence` | what servers held and did: Raft's and the disk's invariants |
| `judge` | all that fit the functions of a history |

Invariants:
- No module imports a broker, a client or an event loop: histories of any system can be judged.
- No checker calls a history valid that could not have shown a violation.
"""

from raftmq.checkers.history import (
    History,
    NotAHistory,
    Recorder,
    RowType,
    read_parquet,
    write_parquet,
)
from raftmq.checkers.log.anomalies import LogRules, check_log
from raftmq.checkers.log.instances import check_instances
from raftmq.checkers.objects.claims import check_claims
from raftmq.checkers.objects.linearizability import Limit, check_linearizability
from raftmq.checkers.objects.models import MODELS, Model
from raftmq.checkers.objects.topic_lives import check_topic_lives
from raftmq.checkers.objects.zones import check_zones
from raftmq.checkers.pop.hand_off import check_hand_off
from raftmq.checkers.pop.ledger import check_pop
from raftmq.checkers.pop.messages import PopRules
from raftmq.checkers.pop.resets import check_resets
from raftmq.checkers.pop.withheld import WithheldRules, check_withheld
from raftmq.checkers.servers.evidence import (
    Acknowledged,
    Derived,
    Entry,
    EntryAt,
    Evidence,
    Moment,
    NodeLog,
    ProgressAt,
    Recovery,
    Served,
    SyncFailed,
)
from raftmq.checkers.servers.invariants import INVARIANTS, Invariant, check_evidence

from .dictionary import ANOMALIES
from .formats import read_history
from .judge import judge
from .key_order import check_key_order
from .total_queue import check_total_queue
from .verdict import Anomaly, Report, Verdict, explain, with_entries, worst

__all__ = [
    "ANOMALIES",
    "INVARIANTS",
    "MODELS",
    "Acknowledged",
    "Anomaly",
    "Derived",
    "Entry",
    "EntryAt",
    "Evidence",
    "History",
    "Invariant",
    "Limit",
    "LogRules",
    "Model",
    "Moment",
    "NodeLog",
    "NotAHistory",
    "PopRules",
    "ProgressAt",
    "Recorder",
    "Recovery",
    "Report",
    "RowType",
    "Served",
    "SyncFailed",
    "Verdict",
    "WithheldRules",
    "check_claims",
    "check_evidence",
    "check_hand_off",
    "check_instances",
    "check_key_order",
    "check_linearizability",
    "check_log",
    "check_pop",
    "check_resets",
    "check_topic_lives",
    "check_total_queue",
    "check_withheld",
    "check_zones",
    "explain",
    "judge",
    "read_history",
    "read_parquet",
    "with_entries",
    "worst",
    "write_parquet",
]
