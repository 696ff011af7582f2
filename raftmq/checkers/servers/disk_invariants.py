"""The disk's invariants as far as evidence can decide them, see `invariants` for the list.

Sources: "Can applications recover from fsync failures?" (ATC '20) for L5; Protocol-Aware Recovery
(FAST '18) for L4 and L7.
"""

from itertools import pairwise

from .breach import Breach, Looked, require_some
from .evidence import EntryAt, Evidence


def recovery_repeats(evidence: Evidence) -> Looked:
    """L1."""
    require_some(evidence.recoveries, "recovery")
    found = [
        Breach(f"node {one.node}: recovering again left other bytes")
        for one in evidence.recoveries
        if one.digest != one.digest_again
    ]
    return Looked(found, len(evidence.recoveries))


def keeps_synced(evidence: Evidence) -> Looked:
    """L2."""
    require_some(evidence.recoveries, "recovery")
    found = [
        Breach(f"node {one.node} had synced index {one.durable} and recovered up to {one.last}")
        for one in evidence.recoveries
        if one.last < one.durable
    ]
    return Looked(found, len(evidence.recoveries))


def rot_is_not_served(evidence: Evidence) -> Looked:
    """L4, its first half: an entry that is handed out equals the committed one."""
    require_some(evidence.served, "entry that was handed out")
    committed = evidence.committed()
    found = [
        Breach(f"node {one.node} handed out index {one.index} with other bytes than committed")
        for one in evidence.served
        if one.index in committed and committed[one.index].crc != one.crc
    ]
    return Looked(found, sum(one.index in committed for one in evidence.served))


def failed_sync_is_final(evidence: Evidence) -> Looked:
    """L5."""
    require_some(evidence.sync_failures, "failed sync")
    failed: dict[tuple[int, int], int] = {}
    for one in evidence.sync_failures:
        key = one.node, one.incarnation
        failed[key] = min(one.time, failed.get(key, one.time))
    found = [
        Breach(
            f"node {told.node} acknowledged index {told.entry.index} at {told.time}, after its "
            f"sync had failed at {failed[told.node, told.incarnation]}",
            (EntryAt(told.node, told.entry),),
        )
        for told in evidence.acknowledged
        if told.time > failed.get((told.node, told.incarnation), told.time)
    ]
    # Only answers of a process whose fsync failed could show a breach: count the failures.
    return Looked(found, len(failed) if evidence.acknowledged else 0)


def indexes_rebuild(evidence: Evidence) -> Looked:
    """L6."""
    require_some(evidence.derived, "derived file that was rebuilt")
    found = [
        Breach(f"node {one.node}: {one.name} rebuilt has other bytes")
        for one in evidence.derived
        if one.before != one.after
    ]
    return Looked(found, len(evidence.derived))


def chain_is_unbroken(evidence: Evidence) -> Looked:
    """L7: indexes without gaps, and each entry names the checksum of the one before it."""
    logs = [node for node in evidence.nodes if node.entries]
    require_some(logs, "log entry")
    compared, found = 0, []
    for node in logs:
        before = (node.base,) if node.base.index else ()
        for one, other in pairwise((*before, *node.entries)):
            compared += 1
            if other.index != one.index + 1 or other.chain != one.crc:
                fact = f"node {node.node}: index {other.index} does not follow {one.index}"
                copies = EntryAt(node.node, one), EntryAt(node.node, other)
                found.append(Breach(fact, copies))
    return Looked(found, compared)


def acknowledged_stays(evidence: Evidence) -> Looked:
    """L8: each acknowledged entry is on some node in the end, with the acknowledged checksum."""
    require_some(evidence.acknowledged, "acknowledged entry")
    require_some(evidence.nodes, "log")
    found = []
    for told in evidence.acknowledged:
        index = told.entry.index
        copies = [(node, node.at(index)) for node in evidence.nodes]
        is_kept = any(
            (entry is not None and entry.crc == told.entry.crc) or index < node.base.index
            for node, entry in copies
        )
        if not is_kept:
            others = tuple(EntryAt(node.node, one) for node, one in copies if one is not None)
            found.append(Breach(f"acknowledged index {index} is on no node", others))
    return Looked(found, len(evidence.acknowledged))
