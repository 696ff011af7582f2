"""A consumer's membership, by itself: taking the place of an instance."""

from typing import Any

import anyio

from raftmq.client.consume.membership import Member
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.wire.assignment import FoundMembers
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import AdminDone, FrameKind


class Lapsing:
    """Calls of a leader at which the earlier holder of the place lapses after the first join."""

    seconds_max = 30.0

    def __init__(self) -> None:
        self.joins = 0

    def draw_request(self) -> int:
        return 1

    async def call_leader(self, _group: int, kind: FrameKind, *_: Any, **__: Any) -> Frame:
        if kind == FrameKind.MEMBERS:
            return Frame(kind, 0, pack(FoundMembers([], False)), b"")
        self.joins += 1
        if self.joins == 1:
            raise Rejected(Reason.FENCED, "another process has taken the place of instance 'two'")
        return Frame(kind, 0, pack(AdminDone()), b"")


def test_seed_1107563_instance_whose_earlier_holder_lapses_meanwhile_joins() -> None:
    router: Any = Lapsing()
    member = Member(router, JoinGroup("t", "b", 7, 3000, instance="two"))
    anyio.run(member.join)
    assert router.joins == 2
