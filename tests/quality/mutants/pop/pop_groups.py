"""Mutants of consumer groups that pop.

They are hunted on random logs of one machine (`raftmq.chaos.ledger`), which need no cluster; the
simulated world kills them as well, with `--workload pop`.

Sources: issues of Apache RocketMQ as named, and a reading of its POP of early 2026.
"""

from collections.abc import Iterable
from typing import Any

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.machine.pop_groups import Attached, PopGroups
from raftmq.machine.producers import Producers
from raftmq.pop.backlog import Backlog
from raftmq.pop.credit import Credit
from raftmq.pop.groups import PopGroup
from raftmq.pop.keyed import KeyedBacklog
from raftmq.pop.leases import Handed, Leases
from raftmq.pop.pieces import Piece
from raftmq.pop.retries import Retries
from raftmq.pop.spans import Span
from raftmq.results import Changed, Result


def forgets_a_retry(patch: Patch) -> None:
    """54"""
    load = Retries.load

    def without(self: Retries, rows: list[list[Any]]) -> None:
        load(self, rows[1:])

    patch.set(Retries, "load", without)


def revives_the_next_message(patch: Patch) -> None:
    """55"""
    wake = Backlog.wake

    def from_there_on(self: Backlog, messages: Piece) -> None:
        # Messages that are gone before `trimmed` are read as those that follow it.
        trimmed = getattr(self, "trimmed", 0)
        gone, kept = messages.before(trimmed)
        if gone is None:
            wake(self, messages)
            return
        self.waiting -= messages.size
        size = messages.size if kept is None else kept.size + gone.size
        self.put_back(Piece(trimmed, (1 << size) - 1, messages.attempt, messages.keys))

    def trim(self: Backlog, earliest: int) -> None:
        self.trimmed = earliest  # type: ignore[attr-defined]
        plain_trim(self, earliest)

    plain_trim = Backlog.trim
    patch.set(Backlog, "wake", from_there_on)
    patch.set(Backlog, "trim", trim)
    patch.set(Retries, "drop_before", lambda *_: [])


def keeps_leases_in_memory(patch: Patch) -> None:
    """56"""
    patch.set(Leases, "load", lambda *_: None)


def settles_by_offset(patch: Patch) -> None:
    """57"""
    settle = PopGroup._settle

    def careless(
        self: PopGroup,
        consumer: int,
        token: int,
        messages: Span,
        *rest: Any,
        **named: Any,
    ) -> Result:
        wanted = set(messages.offsets())
        for lease in list(self._leases):
            if wanted & set(lease.messages.span.offsets()):
                return settle(self, lease.consumer, lease.token, messages, *rest, **named)
        return settle(self, consumer, token, messages, *rest, **named)

    patch.set(PopGroup, "_settle", careless)


def stops_at_a_strange_ack(patch: Patch) -> None:
    """58"""
    ack, pass_time = PopGroup.ack, PopGroup.pass_time

    def counted(self: PopGroup, *call: Any) -> Result:
        result = ack(self, *call)
        self.strange = not isinstance(result, Changed)  # type: ignore[attr-defined]
        return result

    def stalled(self: PopGroup, now: int) -> bool:
        return not getattr(self, "strange", False) and pass_time(self, now)

    patch.set(PopGroup, "ack", counted)
    patch.set(PopGroup, "pass_time", stalled)


def buries_and_keeps(patch: Patch) -> None:
    """59"""
    bury = PopGroup._bury

    def both(self: PopGroup, queue: int, messages: Piece, *rest: Any, **named: Any) -> None:
        bury(self, queue, messages, *rest, **named)
        self.backlogs[queue].put_back(messages)

    patch.set(PopGroup, "_bury", both)


def keeps_the_offset_of_another_log(patch: Patch) -> None:
    """60"""
    load, take = Backlog.load, Backlog._take_fresh
    highest: dict[int, int] = {}

    def remember(self: Backlog, *call: Any) -> Piece | None:
        taken = take(self, *call)
        highest[self.begun] = max(self.next, highest.get(self.begun, 0))
        return taken

    def beyond(self: Backlog, values: list[Any]) -> None:
        load(self, values)
        self.next = max(self.next, highest.get(self.begun, 0))

    patch.set(Backlog, "_take_fresh", remember)
    patch.set(Backlog, "load", beyond)


def believes_the_clients_clock(patch: Patch) -> None:
    """61"""
    hand = PopGroup._hand

    def early(self: PopGroup, consumer: int, credit: Credit, *rest: Any) -> Handed:
        # Some clients' clocks are ahead.
        shorter = credit._replace(invisible_ms=max(1, credit.invisible_ms - 20 * (consumer % 3)))
        return hand(self, consumer, shorter, *rest)

    patch.set(PopGroup, "_hand", early)


def extends_and_keeps_the_old_lease(patch: Patch) -> None:
    """62"""
    extend = PopGroup.extend

    def twice(self: PopGroup, consumer: int, token: int, now: int, **named: int) -> Result:
        before = [lease for lease in self._leases if lease.token == token]
        result = extend(self, consumer, token, now, **named)
        for lease in before if isinstance(result, Changed) else []:
            self.backlogs[lease.queue].waiting += lease.messages.size
            self._retries.add(lease.deadline, lease.queue, lease.messages)
        return result

    patch.set(PopGroup, "extend", twice)


def stores_what_is_sent_again(patch: Patch) -> None:
    """63"""
    patch.set(Producers, "admit", lambda *_, **__: None)


def serves_a_new_group_with_the_old_one(patch: Patch) -> None:
    """64"""
    close, attach = PopGroups._close, PopGroups._attach
    old: dict[int, PopGroup] = {}

    def keep(self: PopGroups, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        old.update({n: self.attached[n].group for n in numbers if n in self.attached})
        close(self, numbers)

    def again(self: PopGroups, number: int, attached: Attached) -> None:
        attached.group = old.pop(number, attached.group)
        attach(self, number, attached)

    patch.set(PopGroups, "_close", keep)
    patch.set(PopGroups, "_attach", again)


def forgets_attempts(patch: Patch) -> None:
    """65"""
    load = Retries.load

    def again(self: Retries, rows: list[list[Any]]) -> None:
        load(self, [[*row[:4], 0, *row[5:]] for row in rows])

    patch.set(Retries, "load", again)


def frees_a_key_that_failed(patch: Patch) -> None:
    """66"""
    wait = KeyedBacklog.wait

    def overtaken(self: KeyedBacklog, messages: Piece) -> None:
        wait(self, messages)
        self.end_turn(messages)

    patch.set(KeyedBacklog, "wait", overtaken)


MUTANTS = (
    Mutant(
        number=54,
        name="retry-lost",
        what="A retry that was to be written when the leader changed is forgotten [#10985, #7914].",
        killers=(
            "R21",
            "Q8",
            "Q16",
        ),
        plant=forgets_a_retry,
        is_popping=True,
    ),
    Mutant(
        number=55,
        name="next-revived",
        what="In the place of a message that retention took the next one is revived [#7724].",
        killers=(
            "Q8",
            "Q9",
            "Q10",
            "assert",
        ),
        plant=revives_the_next_message,
        is_popping=True,
    ),
    Mutant(
        number=56,
        name="leases-in-memory",
        what="Leases are in the leader's memory only [RocketMQ's buffer, Kafka's share groups].",
        killers=(
            "R21",
            "Q8",
            "Q10",
            "Q16",
            "assert",
        ),
        plant=keeps_leases_in_memory,
        is_popping=True,
    ),
    Mutant(
        number=57,
        name="settled-by-offset",
        what="A settlement finds its lease by offset, not by token [NATS, RabbitMQ PR #4305].",
        killers=("Q14",),
        plant=settles_by_offset,
        is_popping=True,
    ),
    Mutant(
        number=58,
        name="strange-ack-stalls",
        what="After an ack that no lease belongs to nothing is taken back [#5408, #3443].",
        killers=(
            "R21",
            "Q8",
            "Q14",
            "Q16",
        ),
        plant=stops_at_a_strange_ack,
        is_popping=True,
    ),
    Mutant(
        number=59,
        name="buried-and-kept",
        what="A dead letter is written, and the message is handed out all the same.",
        killers=(
            "Q8",
            "Q9",
            "assert",
        ),
        plant=buries_and_keeps,
        is_popping=True,
    ),
    Mutant(
        number=60,
        name="offset-of-another-log",
        what="A restored replica keeps an offset that is beyond its log [#4771].",
        killers=(
            "R21",
            "Q8",
            "Q16",
            "assert",
        ),
        plant=keeps_the_offset_of_another_log,
        is_popping=True,
    ),
    Mutant(
        number=61,
        name="clients-clock",
        what="A lease's deadline comes from the consumer's clock.",
        killers=("Q10",),
        plant=believes_the_clients_clock,
        is_popping=True,
    ),
    Mutant(
        number=62,
        name="old-lease-lives",
        what="A lease that is extended runs out at its old time as well.",
        killers=(
            "Q8",
            "Q10",
            "assert",
            "error",
        ),
        plant=extends_and_keeps_the_old_lease,
        is_popping=True,
    ),
    Mutant(
        number=63,
        name="stored-again",
        what="A batch that is sent again to a new leader is stored again.",
        killers=(
            "Q18",
            "error",
        ),
        plant=stores_what_is_sent_again,
        is_popping=True,
    ),
    Mutant(
        number=64,
        name="old-group-serves",
        what="A group that is created again begins with the leases of the old one [#8479].",
        killers=(
            "R21",
            "Q8",
            "Q10",
            "Q14",
        ),
        plant=serves_a_new_group_with_the_old_one,
        is_popping=True,
    ),
    Mutant(
        number=65,
        name="attempts-forgotten",
        what="A new leader counts attempts from the beginning.",
        killers=(
            "R21",
            "Q12",
            "Q8",
        ),
        plant=forgets_attempts,
        is_popping=True,
    ),
    Mutant(
        number=66,
        name="failed-key-freed",
        what="In an ordered group a message that failed lets the next one of its key go.",
        killers=(
            "R21",
            "Q19",
            "assert",
        ),
        plant=frees_a_key_that_failed,
        is_popping=True,
    ),
)
