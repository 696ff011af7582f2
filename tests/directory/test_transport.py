"""pysyncobj's messages in frames: the same on the other side, and no pickles."""

import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.directory.transport import LinkTransport, Member, _command_of, _incoming, _outgoing
from raftmq.errors import ProtocolError
from raftmq.wire import directory as wire
from raftmq.wire.codec import pack, unpack
from tests.access.structs import values

REGULAR, NO_OP = b"\0", b"\1"
CALL = REGULAR + pickle.dumps((3, ("key", ["value", 1, None])), 2)
MESSAGES: list[dict[str, Any]] = [
    {"type": "append_entries", "term": 2, "commit_index": 1, "prevLogIdx": 6, "prevLogTerm": 1,
     "entries": [(CALL, 7, 2), (NO_OP, 8, 2)]},
    {"type": "request_vote", "term": 3, "last_log_index": 8, "last_log_term": 2},
    {"type": "response_vote", "term": 3},
    {"type": "next_node_idx", "next_node_idx": 9, "reset": False, "success": True},
    {"type": "apply_command", "command": CALL, "request_id": 4},
    {"type": "apply_command", "command": CALL},
    {"type": "apply_command_response", "request_id": 4, "log_idx": 9, "log_term": 3},
    {"type": "apply_command_response", "request_id": 4, "error": 2},
]  # fmt: skip
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def travelled(message: dict[str, Any]) -> dict[str, Any]:
    frame = pack(wire.DirectoryMessage([wire.Boot(1, 7)], _outgoing(message)))
    arrived = unpack(wire.DirectoryMessage, frame).message
    assert arrived is not None
    return _incoming(arrived)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["type"]))
def test_message_is_the_same_on_the_other_side(message: dict[str, Any]) -> None:
    assert travelled(message) == message


@given(st.integers(0, 9), st.lists(PLAIN, max_size=3))
def test_call_is_the_same_on_the_other_side(method: int, arguments: list[object]) -> None:
    command = REGULAR + pickle.dumps((method, tuple(arguments)), 2)
    arrived = travelled({"type": "apply_command", "command": command})["command"]
    assert isinstance(arrived, bytes)
    assert pickle.loads(arrived[1:]) == (method, tuple(arguments))


def test_frame_has_no_pickle() -> None:
    for message in MESSAGES:
        assert b"\x80\x02" not in pack(wire.DirectoryMessage([], _outgoing(message)))


@given(values(wire.Call))
def test_command_that_arrives_makes_no_object(call: wire.Call) -> None:
    made = _command_of(call)[1:]
    named = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "INST", "OBJ"}
    assert not named & {opcode.name for opcode, _, _ in pickletools.genops(made)}


def test_snapshot_is_told_as_a_lack() -> None:
    chunk = {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": (b"x", 1, 0)}
    assert _outgoing(chunk) == wire.Behind()


def test_entries_that_do_not_follow_are_refused() -> None:
    with pytest.raises(ProtocolError, match="do not follow each other"):
        _incoming(wire.Append(1, 0, 6, 1, [wire.Entry(8, 1, None)]))
    with pytest.raises(ProtocolError, match="Behind"):
        _incoming(wire.Behind())


def test_message_of_no_member_is_passed_over() -> None:
    transport = LinkTransport([Member(2)], lambda _to, _message: True, lambda _member: True)
    heard: list[object] = []
    transport.setOnMessageReceivedCallback(lambda node, message: heard.append(node.number))
    transport.receive(3, wire.Vote(1))
    transport.receive(2, wire.Vote(1))
    assert heard == [2]
