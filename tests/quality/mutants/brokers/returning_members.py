"""Mutants of members that return, hunted on whole brokers.

The core simulator never deletes a log under a living id, so that these need groups that move, nodes
that come back, and the catalog that gives ids.

Sources: the broker as it was before replica generations (180) and as it was later (323); Raft
thesis §4.4 on servers that must not rejoin under an old id (181, 182); thesis §4.3 on the outgoing
half (183).
"""

from raftmq.chaos.mutant import Mutant, later

_NODES = 5
"""Of a cluster: a group of three can move."""
_SECONDS = 100.0
"""Of a run, in simulated time: a log is deleted some 14 s after its replica was moved away, and has
to come back after that."""
_RETURNS = ("move-group", "kill-leader", "isolate-leader")
_WHY_RETURNS = (
    "it takes a group that moves away and comes back, and leaders that fail meanwhile: one seed in "
    "four draws all of that"
)


def _mutant(
    number: int,
    name: str,
    what: str,
    plant: str,
    killers: tuple[str, ...],
    kinds: tuple[str, ...],
    why: str,
    nodes: int = _NODES,
) -> Mutant:
    return Mutant(
        number=number,
        name=name,
        what=what,
        killers=killers,
        plant=later("tests.quality.mutants.plants.returning_members", plant),
        kinds=kinds,
        why_hinted=why,
        workload="log",
        seconds=_SECONDS,
        nodes=nodes,
    )


MUTANTS = (
    _mutant(180, "founds-again", "A node that founded a group founds it again after its log was "
            "deleted.", "founds_again", ("member-id", "R1", "R4", "R6", "V3", "bug"), _RETURNS,
            _WHY_RETURNS),
    _mutant(181, "old-id", "A replica whose log was deleted comes back under its member id.",
            "returns_under_the_old_id", ("member-id", "R4", "R6", "V3"), _RETURNS,
            _WHY_RETURNS),
    _mutant(182, "lost-log", "A log that was lost is begun again, blank, under its member id.",
            "takes_a_lost_log_for_a_blank_one", ("member-id", "R4", "R6", "V3"),
            ("lose-group", "kill", "isolate-leader", "crash-write"),
            "one seed in forty draws the loss of a log"),
    _mutant(183, "outgoing-unseen", "A node counts as unused though the outgoing half of a change "
            "needs it.", "forgets_outgoing_voters", ("V10", "V1", "V3"),
            ("return-node", "slow-disk"),
            "it takes nodes that leave while changes that still need them are held up: one seed in "
            "seventy-five draws a slow disk and nodes that leave again and again"),
    _mutant(184, "first-id-again", "A folder that was let in, and stopped before it noted that, "
            "is taken for the first one.", "counts_who_knows_the_folder_as_who_does_not",
            ("member-id", "R1", "R4", "R6", "V3"),
            ("add-voter", "wipe", "kill-leader"),
            "one seed in 200 draws a node that joins, one that is wiped and a killed leader",
            nodes=3),
    _mutant(323, "left-for-ever", "A folder that had no log at the start is cleared though it has "
            "one since (raftmq before `35506e5`).", "remembers_what_was_left_for_ever",
            ("missing-file", "V3", "member-id"), ("lose-group", "move-group"),
            "one seed in forty draws the loss of a log; its group has to move away after that"),
    _mutant(324, "moved-log-stays", "The log of a group that moved away is never deleted.",
            "deletes_no_log", ("V3",), ("move-group",), "a group has to move away"),
    _mutant(325, "change-unwritten", "Members that were removed leave before it is in writing that "
            "the change is committed (raftmq before `181f7e0`).",
            "forgets_who_left_at_once", ("V1",),
            ("move-group",), "groups have to move"),
    _mutant(326, "growth-unwritten", "That a change of members is committed is written at once if "
            "it removed some, and else with the next record.", "writes_of_removals_only", ("V1",),
            ("move-group",), "groups have to change"),
    _mutant(327, "next-id-after-log", "A replica whose log was lost begins the next one before its "
            "id is noted (raftmq before `9d4bc8c`).", "notes_the_next_id_after_its_log",
            ("member-id", "R1", "R4", "V3"), ("lose-group",),
            "one seed in forty draws the loss of a log"),
    _mutant(328, "any-catalog", "A leader changes its group's members by the catalog that it has, "
            "however old (raftmq before `9d4bc8c`).", "changes_by_any_catalog", ("V12", "V1", "V3"),
            ("move-group",), "groups have to move"),
    _mutant(329, "the-dead-count", "A leader counts on each voter of its group, also on one that "
            "does not answer (raftmq before 2026-11-26: on one that it had heard before it stood "
            "still).", "counts_on_the_dead", ("V1", "V3"), ("move-group",),
            "groups have to move"),
    _mutant(372, "the-unheard-count", "A leader counts on each voter whose node says that it is "
            "well, also on one whose answers do not arrive (raftmq before 2026-11-27).",
            "counts_on_the_unheard", ("V1", "V3"), ("move-group",), "groups have to move"),
    _mutant(373, "old-answers-count", "A group that called no roll in this round counts the "
            "answers to an earlier roll call (raftmq before 2026-11-27).",
            "takes_old_answers", ("V1", "V3"), ("move-group",), "groups have to move"),
    _mutant(374, "learners-alone", "A leader that leaves goes at once if all members that come are "
            "learners, whether they reach each other or not (raftmq before 2026-11-27).",
            "leaves_the_learners_alone", ("V1", "V3"), ("move-group",), "groups have to move"),
)  # fmt: skip
