"""Mutants of links and connections, hunted on whole brokers: the core simulator has no connections.

Sources: bugs that a reading of the code found, before their mend; see docs/decisions, the page on
strangers and outages.
"""

from raftmq.chaos.mutant import Mutant, later

_WHY_STRANGERS = "one seed in thirty draws strangers"
_WHY_TWO = "it takes strangers and another fault: one seed in 400 draws both, at most"


def _mutant(
    number: int,
    name: str,
    what: str,
    killer: str,
    plant: str,
    *kinds: str,
    seconds: float = 20.0,
    why: str = _WHY_STRANGERS,
    also: str = "",
) -> Mutant:
    return Mutant(
        number=number,
        name=name,
        what=what,
        killers=(killer, also) if also else (killer,),
        plant=later("tests.quality.mutants.plants.connections", plant),
        kinds=kinds or ("strangers",),
        why_hinted=why,
        workload="log",
        seconds=seconds,
    )


MUTANTS = (
    _mutant(211, "link-dies", "A name that cannot be looked up ends the task of a link, and the "
            "node with it.", "bug", "dies_of_a_name"),
    _mutant(212, "unfinished-free", "Bytes of unfinished frames are not counted.", "B1",
            "does_not_count_unfinished_bytes"),
    _mutant(213, "kernel-patience", "Links have no user timeout.", "V1",
            "waits_as_long_as_the_kernel", "outage", why="one seed in sixty draws an outage"),
    _mutant(214, "guests-stay", "A link that a Hello asked for outlives its connection.", "B3",
            "remembers_every_guest"),
    _mutant(215, "superseded-believed", "Any peer's answer `superseded` ends the node.", "bug",
            "believes_who_says_superseded"),
    _mutant(216, "places-for-all", "Silent connections are accepted without a limit.", "B2",
            "gives_a_place_to_everybody"),
    _mutant(217, "answers-trusted", "An answer that cannot be read ends the task that asked.",
            "bug", "trusts_answers", "strangers", "stop", why=_WHY_TWO),
    _mutant(218, "any-address", "Addresses are not judged where they come in.",
            "stranger-believed", "takes_any_address"),
    _mutant(219, "own-guest", "A Hello under the node's own number makes it its own guest.", "bug",
            "links_back_to_itself"),
    _mutant(231, "clocks-read-answers", "The task that asks for clocks reads answers by itself, "
            "and one that cannot be read ends it.", "bug", "clocks_read_answers", seconds=40.0,
            also="stranger-believed"),
    _mutant(232, "guest-admits", "A blank folder asks guests whether it may take part.",
            "stranger-believed", "asks_guests_whether_it_may_take_part", "strangers", "wipe",
            why=_WHY_TWO),
    _mutant(233, "guest-gives-ids", "A node whose system log is lost asks guests for its member "
            "id.", "member-id", "asks_guests_for_its_member_id", "strangers", "lose-group",
            why=_WHY_TWO),
    _mutant(234, "guest-introduces", "A node at its start looks for the nodes in a guest's table.",
            "bug", "asks_guests_for_tables", "strangers", "wipe", why=_WHY_TWO),
    _mutant(235, "guest-confirms", "A node asks guests whether its folder was replaced.",
            "bug", "asks_guests_whether_it_was_replaced"),
    _mutant(236, "none-introduced", "A node at its start asks only the nodes in its settings.",
            "V3", "asks_its_settings_alone", "replace-node", "wipe", "kill-leader",
            why="it takes a node that is wiped when others have been replaced, and one seed in "
            "forty replaces any"),
)  # fmt: skip
