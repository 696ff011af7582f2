"""A candidate that is elected before its own vote is on its disk, crashes, and comes back.

Found while the whole-broker simulation was read: etcd's asynchronous storage lets vote requests
leave before the candidate's own term is durable. Two others can elect it; if it crashes then, it
asks for the same term again, gets the same votes, and leads twice in one term.
"""

from raftmq.consensus import (
    APPEND_THREAD,
    APPLY_THREAD,
    ConfState,
    HardState,
    MemoryStorage,
    Message,
    MessageKind,
    Raft,
)
from tests.consensus.cluster import make_raft, make_storage, of_kind


class AsyncNode:
    """A node whose disk can stand still."""

    def __init__(self, number: int) -> None:
        self.storage: MemoryStorage = make_storage(ConfState(voters=(1, 2, 3)))
        self.number = number
        self.raft: Raft = self._made()

    def _made(self) -> Raft:
        return make_raft(self.storage, self.number, async_storage_writes=True)

    def crash(self) -> None:
        """Start again from the durable state."""
        self.raft = self._made()

    def work(self, *, is_writing: bool) -> list[Message]:
        """Do all due work; returns the messages to other nodes."""
        sent: list[Message] = []
        while self.raft.has_ready():
            for message in self.raft.ready().messages:
                if message.to not in (APPEND_THREAD, APPLY_THREAD):
                    sent.append(message)
                elif is_writing:
                    self._write(message)
                    for response in message.responses:
                        if response.to == self.number:
                            self.raft.step(response)
                        else:
                            sent.append(response)
        return sent

    def _write(self, message: Message) -> None:
        if message.to == APPEND_THREAD:
            self.storage.append(list(message.entries))
            if message.term:
                self.storage.hard_state = HardState(message.term, message.vote, message.commit)


def test_candidate_asks_for_votes_when_its_own_vote_is_durable() -> None:
    """Raft figure 2: currentTerm and votedFor are "updated on stable storage before responding"."""
    node = AsyncNode(1)
    node.raft.campaign()
    assert of_kind(node.work(is_writing=False), MessageKind.VOTE) == []
    node.crash()
    node.raft.campaign()
    asked = of_kind(node.work(is_writing=True), MessageKind.VOTE)
    assert [(message.to, message.term) for message in asked] == [(2, 2), (3, 2)]
    assert node.storage.hard_state.term == 2
    node.crash()
    node.raft.campaign()
    assert {message.term for message in node.work(is_writing=True)} == {3}
