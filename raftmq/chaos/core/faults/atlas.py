"""The fault atlas: which disks may be destroyed, so that the checks know what must survive.

A damaged disk does not count as a copy until its node is replaced, or holds all its records again.
The rule: in every membership by which a node may still decide, a majority of the voters stays
intact. So each committed record keeps an intact copy that every election needs, and a cluster that
heals must recover all records. An event that would break the rule does not happen, and is counted.

Sources: TigerBeetle's fault atlas; Protocol-Aware Recovery (FAST '18) §2.
"""

from typing import TYPE_CHECKING

from raftmq.consensus import ConfState

if TYPE_CHECKING:
    from raftmq.chaos.core.cluster import Cluster
    from raftmq.chaos.core.node import Node


def may_lose(cluster: "Cluster", node: "Node") -> bool:
    """Whether the copy of a node may be destroyed now."""
    # A membership that is in a log and not applied yet would be missing from `_confs`.
    if is_change_pending(cluster):
        return False
    return all(_survives(cluster, conf, without=node.id) for conf in _confs(cluster))


def may_become(cluster: "Cluster", conf: ConfState) -> bool:
    """Whether the cluster may change to these members: enough of them must be intact."""
    return _survives(cluster, conf, without=0)


def is_change_pending(cluster: "Cluster") -> bool:
    """Whether any log holds a membership change that its node has not applied."""
    return any(
        node.durable.memberships[-1:] > [node.applied]
        or (node.replica is not None and node.replica.view.memberships[-1:] > [node.applied])
        for node in cluster.nodes.values()
        if not node.is_damaged
    )


def _confs(cluster: "Cluster") -> set[ConfState]:
    """The memberships by which a voter of the newest one may still decide."""
    newest = cluster.newest_conf()
    voters = {*newest.voters, *newest.voters_outgoing}
    return {newest, *(cluster.nodes[number].conf_state for number in voters)}


def _survives(cluster: "Cluster", conf: ConfState, *, without: int) -> bool:
    for half in (conf.voters, conf.voters_outgoing):
        intact = [n for n in half if n != without and not cluster.nodes[n].is_damaged]
        if half and 2 * len(intact) <= len(half):
            return False
    return True


def quorums_agree(cluster: "Cluster", chosen: set[int]) -> bool:
    """Whether these nodes are a majority in every membership that counts."""
    return all(
        2 * len(chosen & set(half)) > len(half)
        for conf in _confs(cluster)
        for half in (conf.voters, conf.voters_outgoing)
        if half
    )
