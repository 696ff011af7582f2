"""Mutants of links and connections, hunted on whole brokers: the core simulator has no connections.

Sources: what a reading of the code found, before it was mended; see docs/decisions, the page on
strangers and outages.
"""

from raftmq.chaos.mutants.mutant import Mutant, later


def _mutant(
    number: int, name: str, what: str, killer: str, plant: str, *kinds: str, seconds: float = 20.0
) -> Mutant:
    return Mutant(
        number=number,
        name=name,
        what=what,
        killers=(killer,),
        plant=later("raftmq.chaos.sim.connection_mutants", plant),
        kinds=kinds or ("strangers",),
        workload="log",
        seconds=seconds,
    )


MUTANTS = (
    _mutant(211, "link-dies", "A name that cannot be looked up ends the task of a link, and the "
            "node with it.", "bug", "dies_of_a_name"),
    _mutant(212, "unfinished-free", "Bytes of unfinished frames are not counted.", "B1",
            "does_not_count_unfinished_bytes"),
    _mutant(213, "kernel-patience", "Links have no user timeout.", "V1",
            "waits_as_long_as_the_kernel", "outage"),
    _mutant(214, "guests-stay", "A link that a Hello asked for outlives its connection.", "B3",
            "remembers_every_guest"),
    _mutant(215, "superseded-believed", "Whoever says `superseded` ends the node.", "bug",
            "believes_who_says_superseded"),
    _mutant(216, "places-for-all", "Silent connections are accepted without a limit.", "B2",
            "gives_a_place_to_everybody"),
    _mutant(217, "answers-trusted", "An answer that cannot be read ends the task that asked.",
            "bug", "trusts_answers", "strangers", "stop"),
    _mutant(218, "any-address", "Addresses are not judged where they come in.", "V3",
            "takes_any_address"),
    _mutant(219, "own-guest", "A Hello under the node's own number makes it its own guest.", "bug",
            "links_back_to_itself"),
    _mutant(231, "clocks-read-answers", "The task that asks for clocks reads answers by itself, "
            "and one that cannot be read ends it.", "bug", "clocks_read_answers", seconds=40.0),
)  # fmt: skip
