"""Changes of the catalog, sent to the leader of the system group."""

from typing import Any

import msgspec

from raftmq.machine.catalog.catalog import Command
from raftmq.wire.codec import unpack
from raftmq.wire.messages import Admin, AdminDone, FrameKind

from .router import SYSTEM_GROUP, Router


async def change_catalog(router: Router, command: Command, timeout: float | None = None) -> Any:
    """Change the catalog once, with any number of attempts; returns the command's result.

    Raises:
        Rejected: the change was refused.
        Unavailable: no leader was found in time; nothing was changed.
        OutcomeUnknown: the change was sent and not answered.
    """
    message = Admin(msgspec.to_builtins(command), router.draw_request())
    frame = await router.call_leader(
        SYSTEM_GROUP, FrameKind.ADMIN, message, timeout=timeout, is_change=True
    )
    return unpack(AdminDone, frame.header).result
