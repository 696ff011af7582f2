"""A consumer's membership in its group, as frames: join, heartbeat, give up, leave."""

from collections.abc import Mapping
from dataclasses import dataclass

import anyio
import msgspec

from raftmq.client.routing.requests import (
    ask_for_pages,
    ask_leader,
    change_catalog,
    seconds_left,
)
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.membership import JoinGroup, LeaveGroup, MemberCommand, ReleaseQueues
from raftmq.wire.assignment import Assigned, FindMembers, FoundMembers, Heartbeat, MemberView


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer as a member of its group."""

    router: Router
    """Finds the leader of the system group."""
    join_command: JoinGroup
    """The member's number, instance and group, as the catalog takes them."""

    async def join(self, *, is_again: bool = False, timeout: float | None = None) -> None:
        """Become a member; safe to repeat, and harmless if a repeat arrives late.

        Raises:
            Rejected: `UNKNOWN_TOPIC`, `GROUP_MODE`; with `is_again` `UNKNOWN_GROUP`, the group was
                deleted meanwhile, or `FENCED`, another process has taken its instance's place.
        """
        command = msgspec.structs.replace(
            self.join_command, is_again=is_again, must_exist=is_again, replaces=0
        )
        left = seconds_left(self.router, timeout)
        while True:
            try:
                return await self._change(command, left())
            except Rejected as error:
                if is_again or error.reason is not Reason.FENCED:
                    raise
                holder = await self._find_holder(left())
                # 0 twice: the holder that caused the refusal has lapsed or left since.
                if holder and holder == command.replaces:
                    raise
            command = msgspec.structs.replace(command, replaces=holder)

    async def _find_holder(self, timeout: float) -> int:
        """The member that holds the place of this member's instance; 0: none."""
        place = (self.join_command.topic, self.join_command.instance)
        members = await find_members(self.router, self.join_command.offsets_name, timeout)
        return next((m.member for m in members if (m.topic, m.instance) == place), 0)

    async def heartbeat(self, version: int, wait_ms: int) -> tuple[Assigned, float]:
        """Renew the lease, and wait for an assignment newer than `version`.

        Returns:
            The member's queues, and until when its lease surely runs, by the event loop's clock.

        Raises:
            Rejected: `FENCED`, it is no longer a member.
            Unavailable: no leader answered for as long as a session.
        """
        begun = anyio.current_time()
        message = Heartbeat(self.join_command.member, version, wait_ms)
        seconds = self.join_command.session_ms / 1000
        assigned = await ask_leader(self.router, message, Assigned, timeout=seconds)
        # The answer may have been made at any time since the request: to count the rest from the
        # request never puts the end of the lease too late.
        return assigned, begun + assigned.remaining_ms / 1000

    async def release(self, epochs: Mapping[int, int]) -> None:
        """Give up queues: by number within the topic, with the epochs under which they are owned.
        Safe to repeat."""
        number = self.join_command.member
        await self._change(ReleaseQueues(number, list(epochs), list(epochs.values())), None)

    async def leave(self, timeout: float | None) -> None:
        """Leave the group. Safe to repeat."""
        await self._change(LeaveGroup(self.join_command.member), timeout)

    async def _change(self, command: MemberCommand, timeout: float | None) -> None:
        await change_catalog(self.router, command, timeout)


async def find_members(
    router: Router, group: str | None, timeout: float | None = None
) -> list[MemberView]:
    """Members of a consumer group (None: of all). The timeout is for all pages together."""
    question = FindMembers(group)
    pages = ask_for_pages(router, question, FoundMembers, timeout=timeout)
    return [member async for page in pages for member in page.members]
