"""Raft's invariants as far as evidence can decide them, see `invariants` for the list.

Each function lists where its invariant does not hold, and counts its comparisons: a function that
compared nothing has decided nothing. A timeline has gaps: a breach that it shows is certain, but
others may have happened between two moments; the simulator looks at every step.

Sources: Raft figure 3, §5.2, §5.4; TLA+ of etcd's raft for CommittedIsDurable.
"""

from collections.abc import Callable, Iterator

from .breach import Breach, Looked, require_some
from .evidence import Entry, EntryAt, Evidence, Moment, NodeLog


def election_safety(evidence: Evidence) -> Looked:
    """R1, Raft figure 3."""
    leaders = _leaders(evidence)
    require_some(leaders, "leader in the timeline")
    known: dict[int, int] = {}
    found = {}
    for moment in leaders:
        other = known.setdefault(moment.term, moment.node)
        if other != moment.node:
            fact = f"nodes {other} and {moment.node} both led in term {moment.term}"
            found[fact] = Breach(fact)
    return Looked(list(found.values()), len(leaders))


def leader_append_only(evidence: Evidence) -> Looked:
    """R2: while a leader leads, its last index never falls, nor changes without rising."""
    require_some(_leaders(evidence), "leader in the timeline")
    compared, found = 0, []
    for before, after in _neighbours(evidence):
        if _tenure(before) != _tenure(after) or before.role != "leader" or after.role != "leader":
            continue
        compared += 1
        is_changed = before.last == after.last and before.last_crc != after.last_crc
        if after.last < before.last or is_changed:
            fact = (
                f"node {after.node}, leader of term {after.term}, had index {before.last} as its "
                f"last and then {after.last}" + ", another entry" * is_changed
            )
            found.append(Breach(fact))
    return Looked(found, compared)


def log_matching(evidence: Evidence) -> Looked:
    """R3: one checksum for each (index, term), and the same chain up to there."""
    require_some(_entries(evidence), "log entry")
    known: dict[tuple[int, int], EntryAt] = {}
    compared, found = 0, []
    for copy in _entries(evidence):
        index, term, crc, chain = copy.entry
        compared += (index, term) in known
        first = known.setdefault((index, term), copy)
        # The chain covers "and so are all before them", also where logs begin at different places.
        if (first.entry.crc, first.entry.chain) != (crc, chain):
            fact = f"nodes {first.node} and {copy.node} differ at index {index} of term {term}"
            found.append(Breach(fact, (first, copy)))
    return Looked(found, compared)


def leader_completeness(evidence: Evidence) -> Looked:
    """R4: a later leader's log reaches every index that an earlier term was seen to commit."""
    require_some(_leaders(evidence), "leader in the timeline")
    compared, found = 0, []
    # By term: the highest index that a leader of that term was seen to have committed.
    highest: dict[int, int] = {}
    for moment in _leaders(evidence):
        highest[moment.term] = max(highest.get(moment.term, 0), moment.commit)
    for moment in _leaders(evidence):
        earlier = max((index for term, index in highest.items() if term < moment.term), default=0)
        compared += earlier > 0
        if moment.last < earlier:
            fact = (
                f"node {moment.node} led in term {moment.term} with last index {moment.last}, "
                f"though index {earlier} was committed in an earlier term"
            )
            found.append(Breach(fact))
    return Looked(found, compared)


def state_machine_safety(evidence: Evidence) -> Looked:
    """R5: no two nodes hold different entries of one index as committed."""
    require_some(evidence.committed(), "committed entry")
    known: dict[int, EntryAt] = {}
    compared, found = 0, []
    for node in evidence.nodes:
        for entry in node.entries:
            if entry.index <= node.commit:
                compared += entry.index in known
                copy = EntryAt(node.node, entry)
                first = known.setdefault(entry.index, copy)
                if first.entry.crc != entry.crc:
                    fact = f"nodes {first.node} and {node.node} committed different {entry.index}"
                    found.append(Breach(fact, (first, copy)))
    return Looked(found, compared)


def term_rises(evidence: Evidence) -> Looked:
    """R6: the term is persistent state."""
    return _falls(evidence, "term", lambda moment: moment.term, is_over_restarts=True)


def commit_rises(evidence: Evidence) -> Looked:
    """R7: the commit index is volatile, so that a restart may lower it."""
    return _falls(evidence, "commit index", lambda moment: moment.commit)


def applied_rises(evidence: Evidence) -> Looked:
    """R8: the applied index is volatile, too, so that a restart may lower it."""
    return _falls(evidence, "applied index", lambda moment: moment.applied)


def match_rises(evidence: Evidence) -> Looked:
    """R9: Raft figure 2, matchIndex "increases monotonically"."""
    require_some(evidence.progress, "progress of followers")
    highest: dict[tuple[int, int, int], int] = {}
    compared, found = 0, []
    for seen in evidence.progress:
        key = seen.node, seen.term, seen.peer
        compared += key in highest
        if seen.match < highest.get(key, 0):
            fact = (
                f"leader {seen.node} of term {seen.term} took match {seen.match} of node "
                f"{seen.peer} after {highest[key]}"
            )
            found.append(Breach(fact))
        highest[key] = max(highest.get(key, 0), seen.match)
    return Looked(found, compared)


def next_above_match(evidence: Evidence) -> Looked:
    """R10."""
    require_some(evidence.progress, "progress of followers")
    found = [
        Breach(
            f"leader {seen.node} of term {seen.term} has next {seen.next} and match {seen.match} "
            f"for node {seen.peer}"
        )
        for seen in evidence.progress
        if seen.next <= seen.match
    ]
    return Looked(found, len(evidence.progress))


def one_vote(evidence: Evidence) -> Looked:
    """R11, Raft §5.2: "at most one candidate in a given term"."""
    voted = [moment for moment in evidence.timeline if moment.vote]
    require_some(voted, "vote in the timeline")
    votes: dict[tuple[int, int], int] = {}
    compared, found = 0, {}
    for moment in voted:
        compared += (moment.node, moment.term) in votes
        first = votes.setdefault((moment.node, moment.term), moment.vote)
        if first != moment.vote:
            fact = (
                f"node {moment.node} voted for {first} and for {moment.vote} in term {moment.term}"
            )
            found[fact] = Breach(fact)
    return Looked(list(found.values()), compared)


def own_term_counted(evidence: Evidence) -> Looked:
    """R12, Raft §5.4.2: a leader's commit index rises only to entries of the leader's own term."""
    terms = {index: entry.term for index, entry in evidence.committed().items()}
    require_some(terms, "committed entry")
    compared, found = 0, []
    for before, after in _neighbours(evidence):
        is_leader = before.role == "leader" and after.role == "leader"
        if not is_leader or _tenure(before) != _tenure(after) or after.commit <= before.commit:
            continue
        compared += after.commit in terms
        term = terms.get(after.commit, after.term)
        if term != after.term:
            fact = (
                f"node {after.node}, leader of term {after.term}, committed up to index "
                f"{after.commit}, an entry of term {term}"
            )
            found.append(Breach(fact))
    return Looked(found, compared)


def committed_is_durable(evidence: Evidence) -> Looked:
    """R13: a majority of the voters' disks holds each committed or acknowledged entry."""
    voters = [node for node in evidence.nodes if node.is_voter]
    wanted = {told.entry.index: told.entry for told in evidence.acknowledged}
    # Where both exist, the acknowledged entry counts: a client was promised that one.
    wanted = evidence.committed() | wanted
    require_some(voters, "voter's log")
    require_some(wanted, "committed or acknowledged entry")
    found = []
    for index, entry in sorted(wanted.items()):
        holders = [node for node in voters if _holds(node, entry)]
        if 2 * len(holders) <= len(voters):
            copies = _copies(evidence, index)
            names = ", ".join(str(node.node) for node in holders)
            held = f"held by {names} only" if names else "held by no voter"
            found.append(Breach(f"index {index} is committed and {held}", copies))
    return Looked(found, len(wanted))


def committed_stays(evidence: Evidence) -> Looked:
    """R15: a node's last index never falls below a commit index that the node once had."""
    require_some(evidence.timeline, "timeline")
    highest: dict[int, int] = {}
    compared, found = 0, []
    lasts = [(moment.node, moment.last, moment.commit) for moment in evidence.timeline]
    lasts += [(node.node, node.last.index, node.commit) for node in evidence.nodes]
    for number, last, commit in lasts:
        compared += number in highest
        if last < highest.get(number, 0):
            fact = f"node {number} had committed {highest[number]} and then ended at {last}"
            found.append(Breach(fact))
        highest[number] = max(highest.get(number, 0), commit)
    return Looked(found, compared)


def indexes_nest(evidence: Evidence) -> Looked:
    """R16."""
    require_some(evidence.timeline, "timeline")
    found = [
        Breach(
            f"node {moment.node} at {moment.time}: applied {moment.applied}, commit "
            f"{moment.commit}, last {moment.last}"
        )
        for moment in evidence.timeline
        if not moment.applied <= moment.commit <= moment.last
    ]
    return Looked(found, len(evidence.timeline))


def only_voters_lead(evidence: Evidence) -> Looked:
    """R18."""
    leaders = _leaders(evidence)
    require_some(leaders, "leader in the timeline")
    found = [
        Breach(f"node {moment.node} led in term {moment.term} without being a voter")
        for moment in leaders
        if not moment.is_voter
    ]
    return Looked(found, len(leaders))


def snapshot_is_committed(evidence: Evidence) -> Looked:
    """R19: a snapshot's last entry is committed on its node, and equals the others' entry."""
    based = [node for node in evidence.nodes if node.base.index]
    require_some(based, "snapshot")
    found = []
    for node in based:
        base = node.base
        if base.index > node.commit:
            fact = f"node {node.node} has a snapshot at {base.index} above commit {node.commit}"
            found.append(Breach(fact, (EntryAt(node.node, base),)))
        for other in evidence.nodes:
            entry = other.at(base.index)
            is_committed = base.index <= other.commit
            if entry is not None and is_committed and entry.crc != base.crc:
                fact = (
                    f"node {node.node}'s snapshot at {base.index} differs from {other.node}'s log"
                )
                found.append(Breach(fact, (EntryAt(node.node, base), EntryAt(other.node, entry))))
    return Looked(found, len(based))


def same_state(evidence: Evidence) -> Looked:
    """R21: digests of machines, compared wherever two nodes have one for the same index."""
    known: dict[int, tuple[int, int]] = {}
    compared, found = 0, []
    for node in evidence.nodes:
        for index, digest in sorted(node.digests.items()):
            compared += index in known
            other, first = known.setdefault(index, (node.node, digest))
            if first != digest:
                fact = f"nodes {other} and {node.node} differ in state after index {index}"
                found.append(Breach(fact, _copies(evidence, index)))
    require_some(compared, "index with the digests of two machines")
    return Looked(found, compared)


def electable_is_complete(evidence: Evidence) -> Looked:
    """R23: a voter as up to date as a majority (Raft §5.4.1) holds all committed entries."""
    voters = [node for node in evidence.nodes if node.is_voter]
    wanted = evidence.committed()
    require_some(wanted, "committed entry")
    require_some(voters, "voter's log")
    compared, found = 0, []
    for node in voters:
        votes = [other for other in voters if _up_to_date(other) <= _up_to_date(node)]
        if 2 * len(votes) <= len(voters):
            continue
        compared += 1
        missing = [entry for entry in wanted.values() if not _holds(node, entry)]
        if missing:
            index = min(entry.index for entry in missing)
            fact = f"node {node.node} could win an election and lacks committed index {index}"
            found.append(Breach(fact, _copies(evidence, index)))
    return Looked(found, compared)


def _leaders(evidence: Evidence) -> list[Moment]:
    return [moment for moment in evidence.timeline if moment.role == "leader"]


def _neighbours(evidence: Evidence) -> Iterator[tuple[Moment, Moment]]:
    """Each node's moments, each with the one before it."""
    last: dict[int, Moment] = {}
    for moment in evidence.timeline:
        if moment.node in last:
            yield last[moment.node], moment
        last[moment.node] = moment


def _tenure(moment: Moment) -> tuple[int, int, int]:
    return moment.node, moment.incarnation, moment.term


def _falls(
    evidence: Evidence,
    name: str,
    number: Callable[[Moment], int],
    *,
    is_over_restarts: bool = False,
) -> Looked:
    require_some(evidence.timeline, "timeline")
    pairs = [
        (before, after)
        for before, after in _neighbours(evidence)
        if is_over_restarts or before.incarnation == after.incarnation
    ]
    found = [
        Breach(f"node {after.node}'s {name} fell from {number(before)} to {number(after)}")
        for before, after in pairs
        if number(after) < number(before)
    ]
    return Looked(found, len(pairs))


def _entries(evidence: Evidence) -> list[EntryAt]:
    return [EntryAt(node.node, entry) for node in evidence.nodes for entry in node.entries]


def _copies(evidence: Evidence, index: int) -> tuple[EntryAt, ...]:
    copies = [(node, node.at(index)) for node in evidence.nodes]
    return tuple(EntryAt(node.node, entry) for node, entry in copies if entry is not None)


def _holds(node: NodeLog, entry: Entry) -> bool:
    """Whether the node's log has the entry, unchanged, or its snapshot covers the index."""
    own = node.at(entry.index)
    return entry.index < node.base.index or (own is not None and own.crc == entry.crc)


def _up_to_date(node: NodeLog) -> tuple[int, int]:
    return node.last.term, node.last.index
