"""The free space of a node's disk, and the work that the node stops when little space is left.

Some space is kept in reserve (`log.reserve_bytes`), because a node with a full disk must still be
able to vote, to note a new term, and to write the few records that let old segments go.

| left | what follows |
|---|---|
| less than the reserve | leaders take no messages and hand over to a node with space |
| less than half of it | leaders take upkeep only; followers drop what leaders send, as if lost |
| nothing | writes wait and are tried again: see `disk` |

Messages are taken again when a quarter more than the reserve is free. Down to half of the reserve
clients may pop, ack, commit offsets and change the catalog (delete topics, say): such commands are
small, and a consumer that cannot ack would be handed everything again. Reading by offset needs no
space at all.

Invariants:
- The upper half of the reserve is spent on commands, which are small, and never on messages; the
  lower half on votes, terms and upkeep only, apart from what was under way.

Left out: telling the other nodes. The acknowledgements of followers show a leader which have space.

Sources: RabbitMQ's `disk_free_limit`; the spare space of file systems for their owner.
"""

from collections.abc import Container, Iterable, Iterator

from raftmq.broker.host import Host
from raftmq.consensus import Message, ProgressState

from .group import Group, node_of

_UNKNOWN = 2**63
"""More than any disk has."""


class Space:
    """The free space of one node's disk, as last measured."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._free = _UNKNOWN
        self.refusal = ""
        """Why no messages are taken; empty: there is space."""

    @property
    def is_low(self) -> bool:
        """True while leaders here take no messages."""
        return bool(self.refusal)

    @property
    def _reserve(self) -> int:
        return self._node.settings.log.reserve_bytes

    @property
    def free_bytes(self) -> int | None:
        """Bytes beyond the reserve, as last measured; None: not yet."""
        return None if self._free == _UNKNOWN else max(0, self._free - self._reserve)

    def measure(self) -> int:
        """Free bytes; on a worker."""
        return self._node.world.files.free_bytes(self._node.settings.node.data)

    def note(self, free: int, *, is_failing: bool) -> None:
        """Note how much is free; `is_failing`: writes wait for space."""
        self._free = free
        needed = self._reserve + self._reserve // 4 if self.is_low else self._reserve
        was_low, self.refusal = self.is_low, ""
        is_starved = is_failing or free < self._reserve // 2
        if is_failing or free < needed:
            own = self._node.settings.node
            self.refusal = (
                f"the disk of node {own.id} is full: {own.data} has {free} bytes left, and "
                f"log.reserve_bytes is {self._reserve}; it takes no messages until there is more "
                + ("space, nor pops, acks and commits; " if is_starved else "space; ")
                + "reads go on"
            )
        if was_low or self.is_low:
            for group in self._node.groups.values():
                group.full = self.refusal
                group.is_starved = self.is_low and is_starved
        if self.is_low and not was_low:
            self._node.think()

    def refuses(self, message: Message) -> bool:
        """Must a peer's message be dropped, as there is no space for its records?"""
        return self.is_low and bool(message.entries) and self._free < self._reserve // 2


def heirs(group: Group, drained: Container[int]) -> Iterator[int]:
    """Members that could take a group over from a leader without space: voters that lack nothing,
    those on drained nodes last, as it is better that one of them leads.

    A voter whose own disk is full did not acknowledge the last records, if there were any.
    """
    status = group.raft.status()
    members = sorted(status.progress, key=lambda member: (node_of(member) in drained, member))
    for member, progress in ((each, status.progress[each]) for each in members):
        if (
            member != group.raft.id
            and not progress.is_learner
            and progress.is_recently_active
            and progress.state is ProgressState.REPLICATE
            and progress.match == status.last_index
        ):
            yield member


def first_not_in(members: Iterable[int], asked: dict[int, float], *, since: float) -> int:
    """The first member that was not asked after `since`; 0: none."""
    return next((member for member in members if asked.get(member, since) <= since), 0)
