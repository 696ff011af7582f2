"""Mutants of members that return: numbers 180 to 183, hunted on whole brokers.

The core simulator never deletes a log under a living id, so that these need groups that move, nodes
that come back, and the catalog that gives ids.

Sources: the broker as it was before replica generations (180); Raft thesis §4.4 on servers that
must not rejoin under an old id (181, 182); thesis §4.3 on the outgoing half (183).
"""

import msgspec

from raftmq.broker import views
from raftmq.broker.group import Group
from raftmq.broker.node import Node
from raftmq.broker.replicas import Replicas
from raftmq.broker.retiring import Retiring, has_left
from raftmq.chaos.faults import FAULTS, draw
from raftmq.chaos.mutants.mutant import Mutant, Patch, planted
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.run import run
from raftmq.pop.replicas import member_id, node_of
from raftmq.wire.messages import ClusterView, GroupView

NODES = 5
"""Of a cluster: a group of three can move."""
SECONDS = 100.0
"""Of a run, in made-up time: a log is deleted some 14 s after its replica was moved away, and has
to come back after that."""


def play(mutant: Mutant, seed: int) -> Outcome:
    """One run on whole brokers with the mutant planted."""
    schedule = draw(seed, [FAULTS[name] for name in mutant.kinds], nodes=NODES, seconds=SECONDS)
    with planted(mutant):
        return run(schedule, nodes=NODES)


def _delete_without_asking(patch: Patch) -> None:
    async def give_up(retiring: Retiring, group: Group, told: list[ClusterView]) -> None:
        if has_left(group.raft.id, group.number, told, term=group.raft.term):
            retiring._retire(group)

    patch.set(Retiring, "_give_up", give_up)


def _open_under_the_first_id(patch: Patch, *, founds: bool) -> None:
    def open_one(
        replicas: Replicas,
        number: int,
        replica: int,
        founders: list[int],
        *,
        may_be_blank: bool = False,
    ) -> bool:
        node = replicas._node
        is_first = founds or number not in replicas._identity.replicas
        is_founder = node.id in founders and not node.generation and is_first
        member = member_id(node.id, node.generation)
        node.groups[number] = replicas._opener.open(number, member, founders * is_founder)
        replicas._note(number, 0)
        node.mark(node.groups[number])
        return True

    def open_wanted(replicas: Replicas) -> None:
        for group in list(replicas._node.catalog.groups.values()):
            if replicas._is_missing(group.id):
                replicas._open(group.id, 0, group.founders)

    patch.set(Replicas, "_open", open_one)
    patch.set(Replicas, "open_wanted", open_wanted)
    patch.set(Replicas, "think", lambda replicas: None)


def founds_again(patch: Patch) -> None:
    """180"""
    _delete_without_asking(patch)
    _open_under_the_first_id(patch, founds=True)


def returns_under_the_old_id(patch: Patch) -> None:
    """181"""
    _delete_without_asking(patch)
    _open_under_the_first_id(patch, founds=False)


def takes_a_lost_log_for_a_blank_one(patch: Patch) -> None:
    """182"""
    _open_under_the_first_id(patch, founds=False)


def forgets_outgoing_voters(patch: Patch) -> None:
    """183"""
    group_view = views._group_view

    def without(node: Node, number: int) -> GroupView:
        view = group_view(node, number)
        outgoing = set(view.voters_outgoing) - set(view.voters) - set(view.learners)
        kept = [member for member in view.members if node_of(member) not in outgoing]
        return msgspec.structs.replace(view, voters_outgoing=[], members=kept)

    patch.set(views, "_group_view", without)


_RETURNS = ("move-group", "kill-leader", "isolate-leader")

MUTANTS = (
    Mutant(
        number=180,
        name="founds-again",
        what="A node that founded a group founds it again after its log was deleted.",
        killers=("member-id", "R1", "R4", "R6"),
        plant=founds_again,
        kinds=_RETURNS,
    ),
    Mutant(
        number=181,
        name="old-id",
        what="A replica whose log was deleted comes back under its member id.",
        killers=("member-id", "R4", "R6"),
        plant=returns_under_the_old_id,
        kinds=_RETURNS,
    ),
    Mutant(
        number=182,
        name="lost-log",
        what="A log that was lost is begun again, blank, under its member id.",
        killers=("member-id", "R4", "R6"),
        plant=takes_a_lost_log_for_a_blank_one,
        kinds=("lose-group", "kill", "isolate-leader", "crash-write"),
    ),
    Mutant(
        number=183,
        name="outgoing-unseen",
        what="A node is said to be unused though the outgoing half of a change needs it.",
        killers=("V1", "V3"),
        plant=forgets_outgoing_voters,
        kinds=("remove-voter", "replace-node", "slow-disk", "move-group"),
    ),
)
