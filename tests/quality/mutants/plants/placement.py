"""Plants of `tests.quality.mutants.brokers.placement`: the patched code needs the event loop."""

from raftmq.broker.cluster import reconfiguration
from raftmq.broker.placement import balancer, members
from raftmq.broker.replica.group import Group, node_of
from raftmq.chaos.mutant import Patch


def leaves_groups_short(patch: Patch) -> None:
    """370"""
    patch.set(members, "filled", lambda groups, nodes, places: list(groups))


def lets_a_member_come_again(patch: Patch) -> None:
    """371"""
    patch.set(reconfiguration, "_is_repeat", lambda change, known, nodes: True)


def hears_voters_only(patch: Patch) -> None:
    """386"""
    listen = balancer.Balancer._listen

    def to_voters(self: balancer.Balancer, group: Group, now: float) -> set[int]:
        before = dict(self._heard)
        speaking = listen(self, group, now) & set(map(node_of, group.conf_state.voters))
        for node in self._heard.keys() - speaking:
            self._heard[node] = before.get(node, now)
        return speaking

    patch.set(balancer.Balancer, "_listen", to_voters)


def takes_nobody_back(patch: Patch) -> None:
    """387"""
    listen = balancer.Balancer._listen

    def to_all_but_absent(self: balancer.Balancer, group: Group, now: float) -> set[int]:
        return listen(self, group, now) - self._node.catalog.absent

    patch.set(balancer.Balancer, "_listen", to_all_but_absent)
