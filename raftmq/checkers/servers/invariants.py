"""The invariants of Raft, the disk and popping groups: their meaning, and what decides them.

| decided by | meaning |
|---|---|
| evidence | a function in `raft_invariants` or `disk_invariants`, from `Evidence` |
| history | a checker of client histories |
| log | `raftmq.chaos.ledger`, from the committed log |
| simulator | only by looking at every step from inside; a simulator reports it under this name |

`check_evidence` runs the functions of all invariants that evidence can decide. An invariant whose
part of the evidence is missing is reported as unknown; all reports together are as bad as the
worst, and vacuous invariants are listed, not hidden.

Sources: Raft figure 3 and its sections as named; the numbers come from the reliability notes that
this project was planned with.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from raftmq.checkers.servers import disk_invariants as disk
from raftmq.checkers.servers import raft_invariants as raft
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly, Report, Verdict, judged

from .breach import Looked, Unseeable
from .evidence import Evidence

Check = Callable[[Evidence], Looked]


class Invariant(NamedTuple):
    """One promise."""

    name: str
    meaning: str
    decided_by: str
    """evidence, history, log, simulator, or run: the harness of a run watches for it."""
    check: Check | None = None
    """The function that judges it; raises `Unseeable` if the evidence lacks the needed part."""


def _seen(name: str, meaning: str, check: Check) -> Invariant:
    return Invariant(name, meaning, "evidence", check)


def _watched(name: str, meaning: str) -> Invariant:
    return Invariant(name, meaning, "run")


INVARIANTS: Mapping[str, Invariant] = {
    "R1": _seen("election safety", "at most one leader a term", raft.election_safety),
    "R2": _seen(
        "leader append-only",
        "a leader never removes or changes entries of its own log",
        raft.leader_append_only,
    ),
    "R3": _seen(
        "log matching",
        "entries of the same index and term are the same, and so are all before them",
        raft.log_matching,
    ),
    "R4": _seen(
        "leader completeness",
        "an entry that was committed is in the logs of all later leaders",
        raft.leader_completeness,
    ),
    "R5": _seen(
        "state machine safety",
        "no two nodes apply different entries at one index",
        raft.state_machine_safety,
    ),
    "R6": _seen("monotone term", "a node's term never falls, restarts included", raft.term_rises),
    "R7": _seen("monotone commit", "a process's commit index never falls", raft.commit_rises),
    "R8": _seen("monotone applied", "a process's applied index never falls", raft.applied_rises),
    "R9": _seen(
        "monotone match", "in one term a leader's match index never falls", raft.match_rises
    ),
    "R10": _seen("next above match", "next index > match index", raft.next_above_match),
    "R11": _seen("one vote", "one vote a term, restarts included", raft.one_vote),
    "R12": _seen(
        "own term counted",
        "a leader commits by counting only entries of its own term (Raft §5.4.2)",
        raft.own_term_counted,
    ),
    "R13": _seen(
        "committed is durable",
        "a committed or acknowledged entry is on the disks of a majority",
        raft.committed_is_durable,
    ),
    "R14": Invariant(
        "sync before answer", "no answer leaves before its promise is synced", "simulator"
    ),
    "R15": _seen(
        "committed stays",
        "no node's log loses an entry that it knew as committed",
        raft.committed_stays,
    ),
    "R16": _seen("applied, commit, last", "applied <= commit <= last index", raft.indexes_nest),
    "R17": Invariant(
        "one membership change",
        "at most one uncommitted membership; joint ones need both majorities",
        "simulator",
    ),
    "R18": _seen("learners do not lead", "only a voter becomes leader", raft.only_voters_lead),
    "R19": _seen(
        "snapshot is committed",
        "a snapshot stands for committed entries, the same as in others' logs",
        raft.snapshot_is_committed,
    ),
    "R20": Invariant(
        "linearizable reads", "reads see all that was done before they began", "history"
    ),
    "R21": _seen(
        "same state", "at one applied index all machines have one digest", raft.same_state
    ),
    "R22": Invariant(
        "removed nodes are harmless",
        "a node outside the membership forces no election",
        "simulator",
    ),
    "R23": _seen(
        "up to date implies complete",
        "a node that could win an election now holds all committed entries",
        raft.electable_is_complete,
    ),
    "R24": Invariant(
        "a change proves the one before",
        "a log that holds a membership record knows every earlier one as committed, also after a "
        "restart",
        "simulator",
    ),
    "L1": _seen(
        "recovery is idempotent", "recovering twice leaves the same bytes", disk.recovery_repeats
    ),
    "L2": _seen(
        "recovery keeps the synced", "synced entries are there after a recovery", disk.keeps_synced
    ),
    "L3": Invariant("reads are verified", "every read is checked by its checksum", "simulator"),
    "L4": _seen(
        "rot is not served",
        "no node hands out an entry that differs from the committed one",
        disk.rot_is_not_served,
    ),
    "L5": _seen(
        "a failed sync is final",
        "a process whose fsync failed acknowledges nothing after that",
        disk.failed_sync_is_final,
    ),
    "L6": _seen(
        "indexes are derived", "a derived file rebuilt has the same bytes", disk.indexes_rebuild
    ),
    "L7": _seen("unbroken chain", "each entry names the one before it", disk.chain_is_unbroken),
    "L8": _seen(
        "acknowledged stays",
        "an acknowledged entry is in the logs in the end, a full disk or not",
        disk.acknowledged_stays,
    ),
    "Q1": Invariant("nothing is lost", "an acknowledged message is somewhere", "history"),
    "Q2": Invariant("no phantoms", "only sent messages are handed out", "history"),
    "Q3": Invariant("content", "a message is handed out as it was sent", "history"),
    "Q4": Invariant("one place", "a message has one offset, an offset one message", "history"),
    "Q7": Invariant(
        "at least once",
        "in the end a message is acked, a dead letter, or still there to be handed out",
        "history",
    ),
    "Q8": Invariant(
        "conservation", "each message of each group is in one state at every index", "log"
    ),
    "Q9": Invariant("acked is over", "a message that was acked is never handed out again", "log"),
    "Q10": Invariant("one lease", "while a lease runs, its messages have no other holder", "log"),
    "Q11": Invariant("comes again", "an unsettled message comes again in time", "history"),
    "Q12": Invariant("attempts count", "an attempt is one more than the one before", "log"),
    "Q13": Invariant(
        "dead letters",
        "a message that was rejected, or failed for the last time, is a dead letter, once",
        "history",
    ),
    "Q14": Invariant("fencing", "a token settles what it was handed out for, and no more", "log"),
    "Q16": Invariant("no vain wait", "a message that is due and wanted is handed out", "log"),
    "Q18": Invariant("sent once, stored once", "a batch sent twice has one place", "log"),
    "Q19": Invariant(
        "order", "of a key, or a queue, one message after the other is handed out", "log"
    ),
    "Q20": Invariant(
        "not early",
        "a delayed message is in its queue when its time has come, in the order of the times",
        "log",
    ),
    "Q21": Invariant(
        "released once",
        "a delayed message comes once, unless it was taken back before its time",
        "log",
    ),
    "Q22": Invariant(
        "all or nothing",
        "the messages of a transaction come if it commits; its first outcome holds",
        "log",
    ),
    "Q23": Invariant(
        "filter holds",
        "a message first handed out matches, by the feeds since the filter came",
        "log",
    ),
    "Q24": Invariant(
        "offsets are kept",
        "committed offsets are those that commits, claims and deletions give, by their epochs",
        "log",
    ),
    "Q25": Invariant(
        "retention is counted",
        "groups give up what the log will drop, before it does, and no more; clients are told how "
        "much",
        "log",
    ),
    "V1": _watched("a leader soon", "once all is healed, each group has a leader soon"),
    "V3": _watched(
        "all agree in the end",
        "once all is healed, operations succeed, queues are read to their end, and replicas "
        "become alike",
    ),
    "V4": _watched(
        "no needless terms",
        "asking for votes in advance raises no term, and a leader without a majority steps down",
    ),
    "V5": _watched("clients end", "once all is healed, all calls of clients end"),
    "V6": _watched("no storm", "the number of messages and timers in a while has a bound"),
    "V7": _watched("available", "most calls succeed while a majority is well"),
    "V8": _watched(
        "time passes", "a leader without requests lets its log's time pass when a timer is due"
    ),
    "V9": _watched(
        "asked in time",
        "a check-back hears of each open transaction of a group that is led, whatever other groups "
        "do, and whatever end is refused",
    ),
    "V10": _watched(
        "nodes that left do not count",
        "a node leaves the cluster when it has no vote in any group, in either half of a "
        "membership; the system group drops it when no data group counts on it",
    ),
    "V11": _watched(
        "copies are made up",
        "once all is healed, each data group has as many voters as it was founded with, or as many "
        "as there are nodes",
    ),
    "V12": _watched(
        "members follow the catalog",
        "a leader takes in members that a catalog of the last seconds wants, and drops a voter of "
        "a node that is wanted only when the node's next member votes",
    ),
    "V13": _watched(
        "absent nodes were silent",
        "a node becomes absent only after it has been silent for the set time, and never one of "
        "half of the nodes that ever ran",
    ),
    "V14": _watched(
        "the directory is whole",
        "once all is healed, the directory at each node shows the rows of all nodes",
    ),
    "B1": _watched("bytes of frames", "unfinished frames of a stranger hold bounded memory"),
    "B2": _watched("connections", "the connections of a stranger have a bound"),
    "B3": _watched("links", "the links of a node to names it was told have a bound"),
    "B4": _watched("memory", "the resident memory of a node has a bound"),
    "B5": _watched("descriptors", "the open descriptors of a node have a bound"),
    "B6": _watched("holds", "the time for which one task holds a node's event loop has a bound"),
    "B7": _watched(
        "counts of connections",
        "a node counts the bytes, places and requests of its open connections, and no others",
    ),
    "stranger-believed": _watched(
        "strangers decide nothing",
        "no node ends by a stranger's word, and the catalog names no node that a stranger made up",
    ),
    "intrusion": _watched(
        "intruders get nothing",
        "in runs with users, nobody and a user without rights are refused all that they ask for",
    ),
    "rights": _watched(
        "rights hold",
        "in runs with users, a node lets pass what its catalog allows and no more; a connection "
        "ends within a second of the end of its login, or of a right that it has used",
    ),
    "audit-log": _watched(
        "acts are noted once",
        "the audit log has each acknowledged act of an administrator once, with its user, and none "
        "of an intruder",
    ),
    "in-flight": _watched(
        "messages in flight",
        "in runs with quotas, no topic has more messages in flight in a data group than its quota "
        "allows, nor a topic or user at a leader, but for what earlier leaders let in",
    ),
    "answered-lease": _watched(
        "leases of answers",
        "the answer to a POP has only messages that its consumer holds in the leader's machine, "
        "with the deadline of their lease",
    ),
    "member-id": _watched(
        "an id is used once", "a member id is never used again after its log was deleted"
    ),
    "missing-file": _watched(
        "files stay", "no file of a log that is open is deleted but by that log itself"
    ),
    "answered-late": _watched("answered in time", "each call is answered by its timeout"),
    "time-stands-still": _watched(
        "time goes on", "nothing is tried again at once and forever, so that simulated time stands"
    ),
    "client-bug": _watched("no strange error", "no client sees an error that it should not"),
    "bug": _watched("no broken task", "no task of a node ends with an error"),
    "assert": _watched("asserts hold", "no assert of the code itself fails"),
    "error": _watched("no error", "no code breaks with an error of its own"),
}


def check_evidence(evidence: Evidence) -> list[Report]:
    """A report for each invariant that evidence can decide, in the order of the numbers."""
    return [
        _report(number, invariant, evidence)
        for number, invariant in INVARIANTS.items()
        if invariant.check is not None
    ]


def _report(number: str, invariant: Invariant, evidence: Evidence) -> Report:
    assert invariant.check is not None
    name = f"{number} {invariant.name}"
    try:
        breaches, compared = invariant.check(evidence)
    except Unseeable as lacking:
        return Report(name, Verdict.UNKNOWN, f"vacuous: {lacking}")
    anomalies = [
        Anomaly(number, breach.fact, entries=breach.entries) for breach in breaches[:EXAMPLES_MAX]
    ]
    return judged(name, anomalies, {number: len(breaches)}, compared=compared)
