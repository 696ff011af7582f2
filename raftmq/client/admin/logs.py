"""The administrative calls that copy a partition group's log, for a backup (`raftmq.backup`).

    bounds = await mq.admin.log(3)
    size, piece = await mq.admin.log_snapshot(3, bounds, offset=0)       until all bytes are here
    records = await mq.admin.log_records(3, bounds.snapshot + 1, bounds.last + 1)     and so on

All of them go to the leader. They need the right `admin` on the cluster.
"""

from typing import NamedTuple

from raftmq.client.arguments import typed
from raftmq.client.routing.requests import ask_leader
from raftmq.client.routing.router import Router
from raftmq.wire.codec import unpack
from raftmq.wire.messages import FrameKind, RepairedRange, RepairRange
from raftmq.wire.traces import FindLog, FoundLog


class PartitionLog(NamedTuple):
    """The kept log of a partition group at one moment."""

    snapshot: int
    """Index of the oldest snapshot; the records after it are kept."""
    snapshot_crc: int
    """CRC-32C of that snapshot's state."""
    last: int
    """Index of the last applied record."""
    digest: int
    """The machine's digest after that record, equal on all replicas."""


@typed()
class LogCalls:
    """The part of `Admin` about the logs of partition groups."""

    _router: Router

    async def log(self, partition_group: int, *, timeout: float | None = None) -> PartitionLog:
        """The bounds of a group's log. All that was acknowledged before this call is in it.

        Raises:
            Unavailable: no leader was found in time.
        """
        found = await ask_leader(self._router, FindLog(partition_group), FoundLog, timeout=timeout)
        return PartitionLog(found.snapshot, found.snapshot_crc, found.last, found.digest)

    async def log_snapshot(
        self, partition_group: int, log: PartitionLog, offset: int, *, timeout: float | None = None
    ) -> tuple[int, bytes]:
        """The size of the oldest snapshot's file, and up to 1 MiB of it from byte `offset` on.

        Raises:
            Unavailable: no leader with that snapshot was found in time; retention may have replaced
                it since `log` was asked for.
        """
        crc = log.snapshot_crc
        request = RepairRange(partition_group, offset, offset, log.snapshot, crc)
        return await self._copy(request, timeout)

    async def log_records(
        self, partition_group: int, start: int, stop: int, *, timeout: float | None = None
    ) -> bytes:
        """Some of the applied records [start, stop), from the first one on: about 1 MiB, one record
        after the other as they stand in the log. Empty: the leader's disk does not have them yet.

        Raises:
            Unavailable: no leader with these records was found in time; retention may have dropped
                them.
        """
        _, records = await self._copy(RepairRange(partition_group, start, stop), timeout)
        return records

    async def _copy(self, request: RepairRange, timeout: float | None) -> tuple[int, bytes]:
        frame = await self._router.call_leader(
            request.group, FrameKind.REPAIR, request, timeout=timeout
        )
        return unpack(RepairedRange, frame.header).count, frame.body
