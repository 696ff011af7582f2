"""Frames that are sent again in the simulated world."""

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

from raftmq.chaos.sim.faults.replay import play_again
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import REPLY, FrameKind


def test_what_was_refused_and_changes_of_nodes_are_not_sent_again() -> None:
    hello, *requests = (
        b"".join(encode_frame(kind, n, b"x"))
        for n, kind in enumerate([FrameKind.HELLO, *3 * [FrameKind.PRODUCE], FrameKind.CHANGE_NODE])
    )
    answers = [
        encode_frame(FrameKind.HELLO | REPLY, 0, b"welcome"),
        encode_frame(FrameKind.PRODUCE | REPLY, 1, b"stored"),
        encode_frame(FrameKind.ERROR, 2, b"another node leads"),
    ]
    said = b"".join(part for frame in answers for part in frame)
    connections = [
        SimpleNamespace(
            ends=("client", "node1"),
            out=SimpleNamespace(record=b"".join([hello, *sent])),
            back=SimpleNamespace(record=said),
        )
        # The second connection has no request that may be sent again.
        for sent in (requests, requests[1:2])
    ]
    again: list[bytes] = []
    for seed in range(20):
        state: Any = SimpleNamespace(
            taps=SimpleNamespace(recorded=connections),
            random=Random(seed),
            agenda=SimpleNamespace(effects=Counter()),
            spawn=lambda *args: again.extend(args[-1]),
        )
        play_again(state, lambda *_: True)
        assert state.agenda.effects["frames sent again"] > 0
    # The second request was refused, and the fourth is one that must not be repeated.
    assert set(again) == {hello, requests[0], requests[2]}
