"""The remaining work of consumer groups, as their leaders tell an administrator."""

from dataclasses import dataclass, field

from raftmq.checkers.pop.calls import Books
from raftmq.client import Client
from raftmq.client.message import parse_id


@dataclass(slots=True)
class Left:
    """The remaining work of one group on a topic."""

    books: dict[int, Books] = field(default_factory=dict)
    """By queue, from 0."""
    dead: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    """(queue, offset, letter, attempt, reason) of each message in a dead letter."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is left but dead letters."""
        return all(
            one.next == one.end and not one.leased + one.waiting + one.ready
            for one in self.books.values()
        )


def offset_of(id: str) -> int:  # noqa: A002  # what it is called everywhere
    """Offset in its queue of the message with this id."""
    return parse_id(id)[1]


async def find_left(mq: Client, topic: str) -> dict[str, Left]:
    """The remaining work by consumer group, asked of one leader after another.

    Raises:
        Unavailable, OutcomeUnknown: a leader was not found.
    """
    found: dict[str, Left] = {}
    for one in await mq.admin.backlogs(topic=topic):
        found.setdefault(one.group, Left()).books[one.queue] = Books.of(one)
    for group, left in found.items():
        for letter in await mq.admin.dead_letters(topic, group):
            left.dead += [
                (letter.queue, offset, letter.letter, letter.attempt, letter.reason)
                for offset in map(offset_of, letter.ids)
            ]
    return found
