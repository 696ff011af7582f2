"""A consumer's membership in its group, as frames: join, heartbeat, give up, leave."""

from collections.abc import Mapping
from dataclasses import dataclass

import anyio
import msgspec

from raftmq.pop.membership import JoinGroup, LeaveGroup, MemberCommand, ReleaseQueues
from raftmq.wire.assigning import Assigned, FindMembers, FoundMembers, Heartbeat, MemberView
from raftmq.wire.codec import unpack
from raftmq.wire.messages import Admin, FrameKind

from .router import SYSTEM_GROUP, Router


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer as a member of its group."""

    router: Router
    """Finds the leader of the system group."""
    join_command: JoinGroup
    """Who it is."""

    async def join(self, *, is_again: bool = False, timeout: float | None = None) -> None:
        """Become a member; safe to repeat.

        Raises:
            Rejected: `UNKNOWN_TOPIC`, `GROUP_MODE`; if it joins again `UNKNOWN_GROUP`: the group
                was deleted meanwhile, or `FENCED`: another process has taken the place of its
                instance.
        """
        command = self.join_command
        if is_again:
            command = msgspec.structs.replace(command, is_again=True, must_exist=True)
        await self._change(command, timeout)

    async def heartbeat(self, version: int, wait_ms: int) -> tuple[Assigned, float]:
        """Be heard, and wait for news beyond `version`.

        Returns:
            What the member has, and until when its lease surely runs, by the event loop's clock.

        Raises:
            Rejected: `FENCED`, it is no member any more.
            Unavailable: nobody answered for as long as a session.
        """
        begun = anyio.current_time()
        message = Heartbeat(self.join_command.member, version, wait_ms)
        seconds = self.join_command.session_ms / 1000
        frame = await self.router.call_leader(
            SYSTEM_GROUP, FrameKind.HEARTBEAT, message, timeout=seconds
        )
        assigned = unpack(Assigned, frame.header)
        # The answer may have waited; what remains counts from when it was made, at the earliest
        # when it was asked for.
        return assigned, begun + assigned.remaining_ms / 1000

    async def release(self, epochs: Mapping[int, int]) -> None:
        """Give up queues: by number within the topic, with the epochs under which they are owned.
        Safe to repeat."""
        number = self.join_command.member
        await self._change(ReleaseQueues(number, list(epochs), list(epochs.values())), None)

    async def leave(self, timeout: float | None) -> None:
        """Be a member no more. Safe to repeat."""
        await self._change(LeaveGroup(self.join_command.member), timeout)

    async def _change(self, command: MemberCommand, timeout: float | None) -> None:
        message = Admin(msgspec.to_builtins(command))
        await self.router.call_leader(
            SYSTEM_GROUP, FrameKind.ADMIN, message, timeout=timeout, is_change=True
        )


async def find_members(
    router: Router, group: str | None, timeout: float | None = None
) -> list[MemberView]:
    """Members of a consumer group (None: of all). Pages have a timeout of their own."""
    found: list[MemberView] = []
    question = FindMembers(group)
    while True:
        frame = await router.call_leader(SYSTEM_GROUP, FrameKind.MEMBERS, question, timeout=timeout)
        page = unpack(FoundMembers, frame.header)
        found += page.members
        if not page.is_cut:
            return found
        last = found[-1]
        question = FindMembers(group, last.consumer_group, last.topic_id, last.member)
