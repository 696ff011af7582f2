"""The nodes of a cluster: by id and by place, which of them leads, and which are members."""

from raftmq.chaos.core.node import Node
from raftmq.chaos.core.replica.replica import Replica
from raftmq.consensus import ConfState


class Roster:
    """All nodes. It is state."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        """By id: every node that ever existed."""
        self.at_place: dict[int, Node] = {}
        """By place: the node that holds the place now."""

    def enter(self, node: Node) -> None:
        """Take a new node in, in place of the node that held its place before."""
        self.nodes[node.id] = self.at_place[node.place] = node

    def leader(self) -> Replica | None:
        """The replica that leads in the highest term, or None; the replica may be cut off."""
        up = [node.replica for node in self.nodes.values() if node.replica is not None]
        leading = [replica for replica in up if replica.is_leader]
        return max(leading, key=lambda replica: replica.core.term, default=None)

    def newest_conf(self) -> ConfState:
        """The membership that was applied furthest, anywhere."""
        return max(self.nodes.values(), key=lambda node: node.conf_index).conf_state

    def members(self) -> list[Node]:
        """The nodes of the newest membership."""
        conf = self.newest_conf()
        ids = {*conf.voters, *conf.voters_outgoing, *conf.learners}
        return [self.nodes[number] for number in sorted(ids)]
