"""Mutants of links and connections, hunted on whole brokers: numbers 211 to 219.

They are planted as those of `raftmq.chaos.mutants`, which the core simulator hunts; that one has no
connections. `hunt` plays seed after seed of the faults that the mutant names.

Sources: what a reading of the code found, before it was mended; see docs/decisions, the page on
strangers and outages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import trio

from raftmq.broker import connection, members, peers, requests
from raftmq.broker.acquaintances import SUPERSEDED, Superseded
from raftmq.broker.connection import Connection, Load
from raftmq.broker.links import Links
from raftmq.broker.peers import PeerLink
from raftmq.chaos.faults import FAULTS
from raftmq.chaos.faults.schedule import draw
from raftmq.chaos.mutants.mutant import Mutant, Patch, planted
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.sim.run import run
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import ErrorReply, Hello

SECONDS = 20.0
"""Of a run."""


class _Fatal(BaseException):
    """What a link does not catch."""


class Killed(NamedTuple):
    """The end of a hunt."""

    seed: int
    """The first that killed it; -1: none did."""
    name: str
    """Of the promise that broke."""


def dies_of_a_name(patch: Patch) -> None:
    """211"""

    async def open_once(link: PeerLink) -> trio.abc.Stream:
        try:
            return await original(link)
        except (OSError, trio.TooSlowError):
            raise
        except Exception as error:
            # Not an `Exception`: the one supervisor would catch that.
            raise _Fatal(f"{type(error).__name__}: {error}") from error

    original = PeerLink._open
    patch.set(PeerLink, "_open", open_once)
    takes_any_address(patch)


def does_not_count_unfinished_bytes(patch: Patch) -> None:
    """212"""

    def count(one: Connection) -> None:
        change, one._held_bytes = one._owed - one._held_bytes, one._owed
        one._load.add(change)

    patch.set(Connection, "_count", count)


def waits_as_long_as_the_kernel(patch: Patch) -> None:
    """213"""
    patch.set(peers, "give_up_after", lambda *_: None)


def remembers_every_guest(patch: Patch) -> None:
    """214"""
    patch.set(Links, "part", lambda links, hello: None)


def believes_who_says_superseded(patch: Patch) -> None:
    """215"""

    def refused(links: Links, reply: ErrorReply) -> None:
        if reply.code == SUPERSEDED:
            links._node.fail(Superseded(reply.message))

    patch.set(Links, "_refused", refused)


def gives_a_place_to_everybody(patch: Patch) -> None:
    """216"""

    def take_place(load: Load, one: Connection) -> bool:
        load.connections += 1
        load.silent[one] = None
        one.has_place = True
        return True

    patch.set(Load, "take_place", take_place)


def trusts_answers(patch: Patch) -> None:
    """217"""

    async def ask(link: PeerLink, kind: int, question: Any, answer: Any, body: Any = ()) -> Any:
        frame = await link.request(kind, pack(question), body)
        return unpack(answer, frame.header)

    patch.set(PeerLink, "ask", ask)


def takes_any_address(patch: Patch) -> None:
    """218"""
    for module in (connection, members, requests):
        patch.set(module, "why_no_address", lambda host, port: "")


def links_back_to_itself(patch: Patch) -> None:
    """219"""

    def meet(links: Links, hello: Hello) -> None:
        original(links, hello)
        if hello.node == links._node.id:
            links._met[hello.node] += 1
            links._guests[hello.node] = None

    def part(links: Links, hello: Hello) -> None:
        if hello.node == links._node.id and hello.node in links._guests:
            links._end(hello.node)
        parted(links, hello)

    original, parted = Links.meet, Links.part
    patch.set(Links, "meet", meet)
    patch.set(Links, "part", part)


def _mutant(
    number: int, name: str, what: str, killer: str, plant: Callable[[Patch], None], *kinds: str
) -> Mutant:
    return Mutant(
        number=number,
        name=name,
        what=what,
        killers=(killer,),
        plant=plant,
        kinds=kinds or ("strangers",),
    )


MUTANTS = (
    _mutant(211, "link-dies", "A name that cannot be looked up ends the task of a link, and the "
            "node with it.", "bug", dies_of_a_name),
    _mutant(212, "unfinished-free", "Bytes of unfinished frames are not counted.", "B1",
            does_not_count_unfinished_bytes),
    _mutant(213, "kernel-patience", "Links have no user timeout.", "V1",
            waits_as_long_as_the_kernel, "outage"),
    _mutant(214, "guests-stay", "A link that a Hello asked for outlives its connection.", "B3",
            remembers_every_guest),
    _mutant(215, "superseded-believed", "Whoever says `superseded` ends the node.", "bug",
            believes_who_says_superseded),
    _mutant(216, "places-for-all", "Silent connections are accepted without a limit.", "B2",
            gives_a_place_to_everybody),
    _mutant(217, "answers-trusted", "An answer that cannot be read ends the task that asked.",
            "bug", trusts_answers, "strangers", "stop"),
    _mutant(218, "any-address", "Addresses are not judged where they come in.", "V3",
            takes_any_address),
    _mutant(219, "own-guest", "A Hello under the node's own number makes it its own guest.", "bug",
            links_back_to_itself),
)  # fmt: skip


def play(mutant: Mutant, seed: int) -> Outcome:
    """One run with the mutant planted."""
    kinds = [FAULTS[name] for name in mutant.kinds]
    with planted(mutant):
        return run(draw(seed, kinds, nodes=3, seconds=SECONDS))


def hunt(mutant: Mutant, *, seeds_max: int = 20) -> Killed:
    """Play seeds from 0 on until one kills the mutant."""
    for seed in range(seeds_max):
        violations = play(mutant, seed).violations
        if violations:
            return Killed(seed, violations[0].name)
    return Killed(-1, "")
