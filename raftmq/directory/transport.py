"""pysyncobj's messages, as they travel in frames between nodes.

pysyncobj writes its commands as pickles, and a pickle can run code where it is loaded. No pickle
travels here: a command is a call of a method by number, with plain values, and each node makes its
own pickle of it.

    ("append_entries", entries=[(pickle, 7, 2)])  ──>  Append(…, [Entry(7, 2, Call(3, ["k", 1]))])

Invariants:
- A frame makes no object but numbers, texts, bytes, lists and maps.
- A message that pysyncobj cannot have sent is refused (`ProtocolError`).
- Snapshots do not travel: `Behind` tells the other member that it lacks entries for good.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from raftmq.errors import ProtocolError
from raftmq.wire.directory import (
    Answered,
    Append,
    Apply,
    Behind,
    Call,
    Entry,
    NextIndex,
    ReplicaMessage,
    Vote,
    WantVote,
)

_REGULAR, _NO_OP = 0, 1
"""First bytes of pysyncobj's commands; commands of other kinds are not made here."""
_PICKLE = 2
"""pysyncobj's version of the pickle protocol."""


class Member(Node):  # type: ignore[misc]
    """A member as pysyncobj knows it."""

    def __init__(self, number: int) -> None:
        super().__init__(str(number))
        self.number = number

    def __hash__(self) -> int:
        # pysyncobj sends in the order of a set: hashes of texts differ from process to process.
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and other.number == self.number


class LinkTransport(Transport):  # type: ignore[misc]
    """pysyncobj's transport over the links that the nodes have anyway."""

    def __init__(
        self,
        members: Iterable[Member],
        send: Callable[[int, ReplicaMessage], bool],
        is_connected: Callable[[int], bool],
    ) -> None:
        super().__init__(None, None, ())
        self._members = {member.number: member for member in members}
        self._send_to = send
        self._is_connected = is_connected
        self._connected: set[int] = set()

    def look(self) -> None:
        """Tell pysyncobj which links have opened and closed."""
        for number, member in self._members.items():
            was, is_now = number in self._connected, self._is_connected(number)
            if is_now and not was:
                self._connected.add(number)
                self._onNodeConnected(member)
            elif was and not is_now:
                self._connected.discard(number)
                self._onNodeDisconnected(member)

    def send(self, node: Member, message: Mapping[str, Any]) -> bool:
        """Send a message of pysyncobj; False if it was dropped."""
        return self._send_to(node.number, _outgoing(message))

    def receive(self, sender: int, message: ReplicaMessage) -> None:
        """Hand a message to pysyncobj.

        Raises:
            ProtocolError: no member sends it.
        """
        member = self._members.get(sender)
        if member is not None:
            self._onMessageReceived(member, _incoming(message))

    def destroy(self) -> None:
        """There is nothing to close: the links are the node's."""


def _outgoing(message: Mapping[str, Any]) -> ReplicaMessage:
    match message["type"]:
        case "append_entries" if "entries" in message:
            entries = [Entry(index, term, _call_of(c)) for c, index, term in message["entries"]]
            before = (message["prevLogIdx"], message["prevLogTerm"])
            return Append(message["term"], message["commit_index"], *before, entries)
        case "append_entries" if "serialized" in message:
            return Behind()
        case "request_vote":
            last = (message["last_log_index"], message["last_log_term"])
            return WantVote(message["term"], *last)
        case "response_vote":
            return Vote(message["term"])
        case "next_node_idx":
            return NextIndex(message["next_node_idx"], message["reset"], message["success"])
        case "apply_command":
            call = _call_of(message["command"])
            assert call is not None, "leaders alone make entries without a command"
            return Apply(call, message.get("request_id"))
        case "apply_command_response":
            place = (message.get("log_idx", 0), message.get("log_term", 0))
            return Answered(message["request_id"], *place, message.get("error"))
        case kind:
            # An entry as large as a batch would travel in parts: see `replica.BATCH_BYTES`.
            raise AssertionError(f"the directory has no use for {kind} with {sorted(message)}")


def _incoming(message: ReplicaMessage) -> dict[str, Any]:
    match message:
        case Append(term, commit, before, before_term, entries):
            if any(each.index != at for at, each in enumerate(entries, before + 1)):
                raise ProtocolError("entries of a directory's log do not follow each other")
            return {
                "type": "append_entries",
                "term": term,
                "commit_index": commit,
                "prevLogIdx": before,
                "prevLogTerm": before_term,
                "entries": [(_command_of(each.call), each.index, each.term) for each in entries],
            }
        case WantVote(term, last, last_term):
            fields = {"last_log_index": last, "last_log_term": last_term}
            return {"type": "request_vote", "term": term} | fields
        case Vote(term):
            return {"type": "response_vote", "term": term}
        case NextIndex(index, is_reset, is_success):
            fields = {"reset": is_reset, "success": is_success}
            return {"type": "next_node_idx", "next_node_idx": index} | fields
        case Apply(call, number):
            named = {} if number is None else {"request_id": number}
            return {"type": "apply_command", "command": _command_of(call)} | named
        case Answered(number, index, term, error):
            place = {"log_idx": index, "log_term": term} if error is None else {"error": error}
            return {"type": "apply_command_response", "request_id": number} | place
    raise ProtocolError(f"{type(message).__name__} is no message for pysyncobj")


def _call_of(command: bytes) -> Call | None:
    """The call that pysyncobj's command makes; None: the entry with which a leader begins."""
    if command[0] == _NO_OP:
        return None
    assert command[0] == _REGULAR, "members and versions are changed by new epochs"
    # Only pickles of this very process come here: pysyncobj's own, and those of `_command_of`.
    match pickle.loads(command[1:]):
        case int(method):
            return Call(method, [])
        case (int(method), arguments):
            return Call(method, list(arguments))
    raise AssertionError("calls of the directory have no arguments with names")


def _command_of(call: Call | None) -> bytes:
    """pysyncobj's command for a call, pickled here."""
    if call is None:
        return bytes((_NO_OP,))
    return bytes((_REGULAR,)) + pickle.dumps((call.method, tuple(call.arguments)), _PICKLE)
