"""Was a promise broken? Functions from a history, or from evidence, to a report.

Start reading at `verdict` (what a report is), then `total_queue` (the simplest checker).

| checker | judges |
|---|---|
| `check_total_queue` | sends and polls as a bag: lost, unexpected, duplicated |
| `check_log` | sends and polls by offset: what can go wrong with a log |
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
- Nothing here imports a broker, a client or an event loop: histories of anything are welcome.
- No checker calls a history valid that could not have shown a violation.
"""

from raftmq.chaos.checkers.claims import check_claims
from raftmq.chaos.checkers.dictionary import ANOMALIES
from raftmq.chaos.checkers.evidence import (
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
from raftmq.chaos.checkers.formats import read_history
from raftmq.chaos.checkers.hand_off import check_hand_off
from raftmq.chaos.checkers.instances import check_instances
from raftmq.chaos.checkers.invariants import INVARIANTS, Invariant, check_evidence
from raftmq.chaos.checkers.judge import judge
from raftmq.chaos.checkers.key_order import check_key_order
from raftmq.chaos.checkers.linearizability import Limit, check_linearizability
from raftmq.chaos.checkers.log_anomalies import LogRules, check_log
from raftmq.chaos.checkers.models import MODELS, Model
from raftmq.chaos.checkers.pop_ledger import check_pop
from raftmq.chaos.checkers.pop_messages import PopRules
from raftmq.chaos.checkers.resets import check_resets
from raftmq.chaos.checkers.topic_lives import check_topic_lives
from raftmq.chaos.checkers.total_queue import check_total_queue
from raftmq.chaos.checkers.verdict import Anomaly, Report, Verdict, explain, with_entries, worst
from raftmq.chaos.checkers.withheld import WithheldRules, check_withheld
from raftmq.chaos.checkers.zones import check_zones

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
    "Invariant",
    "Limit",
    "LogRules",
    "Model",
    "Moment",
    "NodeLog",
    "PopRules",
    "ProgressAt",
    "Recovery",
    "Report",
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
    "with_entries",
    "worst",
]
