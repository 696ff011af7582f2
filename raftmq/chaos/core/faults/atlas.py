"""The fault atlas: which disks may be destroyed, so that the checks know what must survive.

A damaged disk does not count as a copy until its node is replaced, or holds all its records again.
The rule: in every membership by which a node may still decide, a majority of the voters stays
intact. So each committed record keeps an intact copy that every election needs, and a cluster that
heals must recover all records. An event that would break the rule does not happen, and is counted.

Sources: TigerBeetle's fault atlas; Protocol-Aware Recovery (FAST '18) §2.
"""

from raftmq.chaos.core.node import Node
from raftmq.chaos.core.roster import Roster
from raftmq.consensus import ConfState


def may_lose(roster: Roster, node: Node) -> bool:
    """Whether the copy of a node may be destroyed now."""
    # A membership that is in a log and not applied yet would be missing from `_confs`.
    if is_change_pending(roster):
        return False
    return all(_survives(roster, conf, without=node.id) for conf in _confs(roster))


def may_become(roster: Roster, conf: ConfState) -> bool:
    """Whether the cluster may change to these members: enough of them must be intact."""
    return _survives(roster, conf, without=0)


def is_change_pending(roster: Roster) -> bool:
    """Whether any log holds a membership change that its node has not applied."""
    return any(
        node.durable.memberships[-1:] > [node.applied]
        or (node.replica is not None and node.replica.view.memberships[-1:] > [node.applied])
        for node in roster.nodes.values()
        if not node.is_damaged
    )


def _confs(roster: Roster) -> set[ConfState]:
    """The memberships by which a voter of the newest one may still decide."""
    newest = roster.newest_conf()
    voters = {*newest.voters, *newest.voters_outgoing}
    return {newest, *(roster.nodes[number].conf_state for number in voters)}


def _survives(roster: Roster, conf: ConfState, *, without: int) -> bool:
    for half in (conf.voters, conf.voters_outgoing):
        intact = [n for n in half if n != without and not roster.nodes[n].is_damaged]
        if half and 2 * len(intact) <= len(half):
            return False
    return True


def quorums_agree(roster: Roster, chosen: set[int]) -> bool:
    """Whether these nodes are a majority in every membership that counts."""
    return all(
        2 * len(chosen & set(half)) > len(half)
        for conf in _confs(roster)
        for half in (conf.voters, conf.voters_outgoing)
        if half
    )
