"""Rot: found, never served, mended from peers, and reported until it is mended.

| who meets it | how |
|---|---|
| a consumer's or a peer's read | the records fail their checks |
| the scrub | sealed segments are read slowly, round after round |
| the start of a replica | a file is missing, or has another size or header than its index says |

A damaged index is built again from its segment (`index_rebuild`).

A request for such a record is refused with the advice to try again, a leader hands over, and the
segment is rewritten beside the damaged file (`raftmq.log.rewrite`): sound records come from that
file, the rest from any peer that has applied them and whose own checks they pass. If no peer can
give them, the segment stays as it is: its sound records are served, the others are not, and the
node's status says which and why, until a peer can. A segment that is still written is closed first.

A damaged record that is not applied yet keeps its segment from being sealed, and so from being
mended. A copy from a peer is lent to consensus instead; its index, term and CRC must be those that
the store has in memory.

A replica whose log was cut before rot (`raftmq.log.cutting`) abstains; its note is removed here
when consensus says that the replica holds all again. A replica that lost synced records without a
trace, so that its log looked torn, learns of the loss from a leader that counts on those records;
the node notes the loss and stops.

A snapshot is read as a whole before it is sent, and by the scrub. A rotten one is left out, as
another serves as well: the log stays as it is, and a new snapshot is taken if there is no other. If
the snapshot before the first record is rotten, a member far behind can only get a newer one, and
with it less of the log. So a leader hands over first, as another member has a snapshot of its own;
the node's status says so as long as the file is kept.

Invariants:
- No record is served or sent that has not passed its CRC and stood in its place.
- No damage is skipped: a finding goes only when the segment was replaced by a proven copy, or when
  retention or a snapshot removed it.
- One segment at a time is mended on a node.

Left out: mending a snapshot's file by a peer's; retention takes it in the end.

Sources: Protocol-Aware Recovery (FAST '18) §3; the scrubbers of ZFS and TigerBeetle.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import trio

from raftmq.broker.cluster.peers import PeerLink
from raftmq.broker.host import Host
from raftmq.broker.serve.answers import Answer, OpenRequest, WithBody
from raftmq.broker.world import Worker, run_on
from raftmq.errors import CorruptRecord, RaftmqError, Unavailable
from raftmq.log.faults import DiskFull, Dropped, LogFault, RecordsLost, RotFound
from raftmq.log.index_file import IndexDamaged
from raftmq.log.record import Record, decode_many
from raftmq.log.rewrite import PIECE_BYTES, NotProven, Rewrite
from raftmq.log.segment import SEGMENT_SUFFIX, parse_name
from raftmq.wire.messages import ErrorReply, FrameKind, RepairedRange, RepairRange

from .group import Group
from .index_rebuild import IndexRebuild
from .scrub import Scrub
from .space import heirs

ASK_SECONDS_MAX = 10.0
"""A peer that does not answer within this time is passed over."""

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
"""Pause before another attempt to mend: from the minimum, doubled up to the maximum."""

GIVE_WAY_SECONDS = 10.0
"""A leader with a rotten oldest snapshot waits this long for another leader, and then sends a newer
snapshot."""

READ_AGAIN_SECONDS = 0.5
"""Pause before a member that lacks a rotten record is served again."""


class NobodyHas(Exception):
    """No peer could give the records."""


@dataclass(slots=True)
class Finding:
    """One damaged segment of one replica. It is state."""

    group: int
    """The partition group."""
    name: int
    """The segment, by the index in its file's name."""
    file: str
    """Its path."""
    why: str
    """The fault that was found first, for people."""
    state: str = "is being mended"
    """The state of the mending, for people."""
    attempts: int = 0
    """Attempts to rewrite the segment so far."""

    def described(self) -> dict[str, Any]:
        """As the node's status shows it."""
        return {"file": self.file, "found": self.why, "state": self.state}


class Repairs:
    """The damaged segments of one node."""

    def __init__(self, node: Host, *, reader: Worker, disk: Worker) -> None:
        self._node = node
        self._reader = reader
        self._disk = disk
        self._findings: dict[tuple[int, int], Finding] = {}
        self._is_mending = False
        self._rotten_snapshots: dict[tuple[Group, int], tuple[str, float]] = {}
        """Replica and index → the fault, and when the leadership was given away for it."""
        self._returning: set[Group] = set()
        self._scrub = Scrub(
            node,
            reader,
            on_rot=self.found,
            on_snapshot=self.found_snapshot,
            on_index=self.found_index,
        )
        self._indexing = IndexRebuild(node, reader=reader, disk=disk, on_rot=self.found)
        self.mended = 0
        """Segments that were replaced by a sound copy since the start."""

    # Found

    def found(self, fault: RotFound) -> ErrorReply:
        """Rot was met in a segment: mend it. Returns the refusal for a read there."""
        path = PurePosixPath(fault.file)
        number, name = int(path.parent.name), parse_name(path.name, SEGMENT_SUFFIX)
        assert name is not None, f"{fault.file} is no segment"
        if (number, name) not in self._findings:
            self._findings[number, name] = Finding(number, name, fault.file, str(fault))
            self._hand_over(self._node.group(number))
            if not self._is_mending:
                self._is_mending = True
                self._node.start_soon(self._mend)
        message = f"records here are damaged and are being mended from other nodes: {path.name}"
        return ErrorReply("unavailable", message, retry_ms=200)

    def _hand_over(self, group: Group | None) -> None:
        """Hand over to a member that lacks no record, once for each finding."""
        # A second transfer would replace the one that is under way.
        if group is not None and group.is_leader and not group.raft.status().transferee:
            heir = next(iter(heirs(group, self._node.catalog.drained)), 0)
            if heir:
                group.transfer(heir)

    def found_index(self, group: Group, damaged: IndexDamaged) -> ErrorReply:
        """A segment's index is damaged: build it again. The refusal for a lookup there."""
        if self._indexing.found(group, damaged):
            self._hand_over(group)
        message = f"an index of partition group {group.number} is built again here: {damaged}"
        return ErrorReply("unavailable", message, retry_ms=200)

    def found_snapshot(self, group: Group, index: int, fault: RaftmqError) -> None:
        """A snapshot is rotten here: do without it, and hand over to a member with a sound one."""
        known = self._rotten_snapshots
        known = {key: each for key, each in known.items() if not key[0].is_retired}
        if (group, index) not in known:
            known[group, index] = (str(fault), -math.inf)
            self._node.start_soon(self._do_without, group, index)
        self._rotten_snapshots = known
        # A follower has no leadership to give away; if it leads later, it gives way when it sends.
        if group.is_leader:
            self.gives_way(group, index)

    def gives_way(self, group: Group, index: int) -> bool:
        """Let a member lead whose snapshot at `index` may be sound; False: no member took over, or
        the snapshot here is sound."""
        known = self._rotten_snapshots.get((group, index))
        if known is None:
            return False
        text, since = known
        passed = trio.current_time() - since
        # If all members' snapshots are rotten, the leadership must not fly from one to the other.
        if passed >= 2 * GIVE_WAY_SECONDS:
            self._rotten_snapshots[group, index] = (text, trio.current_time())
            self._hand_over(group)
            return True
        return passed < GIVE_WAY_SECONDS

    async def _do_without(self, group: Group, index: int) -> None:
        """Forget a rotten snapshot. If it is the only one, another is taken at a new border."""
        try:
            while not group.is_retired:
                # On a full disk it is tried again: no other snapshot comes before a new border.
                with suppress(DiskFull):
                    if await run_on(self._disk, partial(group.store.lose_snapshot, index)):
                        return
                    # An empty active segment cannot be closed: it must get a record first.
                    if group.store.layout[-1].base <= group.store.last_index:
                        await self._roll(group)
                await trio.sleep(PAUSE_SECONDS_MAX)
        except LogFault as error:
            # Once a replica has moved away its store is closed, and refuses every call.
            if not group.is_retired:
                self._node.fail(error)

    def rotten_snapshots(self, group: Group) -> list[str]:
        """The faults of a group's snapshots that are still kept."""
        kept = {group.store.first_index - 1, *(meta.index for meta in group.store.snapshots)}
        found = self._rotten_snapshots.items()
        return [text for (each, index), (text, _) in found if each is group and index in kept]

    def status(self, number: int) -> list[dict[str, Any]]:
        """The findings of a group."""
        found = [f.described() for f in self._findings.values() if f.group == number]
        return found + self._indexing.status(number)

    def scrub(self) -> None:
        """Let the scrub read a little more."""
        self._scrub.go_on(self._findings.keys())

    def scrub_status(self) -> dict[str, Any]:
        """The progress of the scrub."""
        return self._scrub.status()

    # Mended

    async def _mend(self) -> None:
        """Mend until no finding is left; those that cannot be mended are tried after a pause."""
        pause = PAUSE_SECONDS_MIN
        try:
            while self._findings:
                before = len(self._findings)
                for key, finding in list(self._findings.items()):
                    if await self._try(finding):
                        self._findings.pop(key, None)
                if len(self._findings) < before:
                    pause = PAUSE_SECONDS_MIN
                if self._findings:
                    await trio.sleep(pause)
                    pause = min(2 * pause, PAUSE_SECONDS_MAX)
        finally:
            self._is_mending = False

    async def _try(self, finding: Finding) -> bool:
        """Whether the finding is over."""
        # Rot is also found while a replica is opened: let the opener enter it into the groups.
        await trio.lowlevel.checkpoint()
        group = self._node.group(finding.group)
        if group is None:
            return True
        is_sealed = any(segment.name == finding.name for segment in group.store.sealed)
        # Retention, or a snapshot that replaced the log, took the segment.
        if not is_sealed and all(info.name != finding.name for info in group.store.layout):
            return True
        try:
            if not is_sealed:
                finding.state = "waits for the segment to be sealed"
                if group.store.layout[-1].name == finding.name:
                    await self._roll(group)
                return False
            await self._rewrite(group, finding)
        except (NotProven, NobodyHas, OSError, DiskFull) as error:
            finding.state = f"cannot be mended now: {error}"
            return False
        except LogFault as error:
            if not group.is_retired:
                self._node.fail(error)
        return True

    async def _roll(self, group: Group) -> None:
        """Have the log go on in another segment: a quiet log might not do so for years."""
        await run_on(self._disk, group.store.roll)
        self._node.persisted(group, [])

    async def _rewrite(self, group: Group, finding: Finding) -> None:
        # Records kept of the damaged file may be those that do not fit: every other attempt takes
        # all records from peers.
        keeps_sound = finding.attempts % 2 == 0
        finding.attempts += 1
        begin = partial(group.store.rewrite, finding.name, keeps_sound=keeps_sound)
        rewrite = await run_on(self._reader, begin)
        if rewrite is None:
            return
        try:
            await self._fill(group, rewrite, finding)
        except (NotProven, NobodyHas, OSError):
            await run_on(self._reader, rewrite.discard)
            raise
        if await run_on(self._disk, partial(group.store.replace, rewrite)):
            self.mended += 1

    async def _fill(self, group: Group, rewrite: Rewrite, finding: Finding) -> None:
        while (wanted := await run_on(self._reader, rewrite.lacks)) is not None:
            low, high = wanted
            records = await self._ask(group.number, low, high, start=finding.attempts)
            await run_on(self._reader, partial(rewrite.add, records))
        await run_on(self._reader, rewrite.finish)

    async def _ask(self, number: int, low: int, high: int, *, start: int) -> list[Record]:
        """Some of the records [low, high) from `low` on, from the first peer that has them."""
        links = self._node.links.members()
        # Each attempt begins with another peer: the records of one may not fit, again and again.
        shift = start % max(1, len(links))
        told = []
        for link in links[shift:] + links[:shift]:
            try:
                return await _ask_peer(link, number, low, high)
            except NobodyHas as error:
                told.append(f"node {link.peer.id}: {error}")
        whom = "; ".join(told) or "there is no other node"
        raise NobodyHas(f"no peer has sound records {low} to {high - 1} ({whom})")

    # Asked by consensus

    def fetch(self, group: Group, peer: int, low: int, high: int) -> None:
        """Read records back from disk, then call `group.fetched`; damaged ones come from peers."""
        if group.is_retired:
            return  # while this waited
        if pause := self._node.links.copy_pause(group, peer):
            again = partial(self.fetch, group, peer, low, high)
            self._node.timers.call_after(pause, again)
            return
        budget = self._node.settings.raft.message_bytes_max * 4

        def done(records: list[Record] | None, error: BaseException | None) -> None:
            if error is not None:
                self._node.read_failed(error)
            # If retention took the records, consensus asks again, and sends a snapshot instead.
            if records or isinstance(error, Dropped):
                group.fetched(peer, records or [])
            elif isinstance(error, RotFound):
                self._node.start_soon(self._lend, group, peer, low, high)
            else:
                self._read_again(group, peer)

        high = min(high, group.cache.last_index() + 1)  # what is not durable yet is not on disk
        self._reader.submit(partial(group.store.read, low, high, budget), done)

    def _read_again(self, group: Group, peer: int) -> None:
        # Without the pause consensus would ask again at once, and the answer would be the same.
        self._node.timers.call_after(READ_AGAIN_SECONDS, partial(group.fetched, peer, []))

    async def _lend(self, group: Group, peer: int, low: int, high: int) -> None:
        """Give consensus records [low, high) that it asked for and that are damaged here.

        Sound records come from here, the rest from peers. A segment is sealed, and so mended, once
        its records are applied: without lending, a record that is damaged before it is applied
        would prevent both.
        """
        records: list[Record] = []
        try:
            records = await run_on(self._reader, partial(_sound, group, low, high))
        except RotFound:
            with suppress(NobodyHas):
                found = await self._ask(group.number, low, high, start=0)
                records = found if group.store.holds(found) else []
        except (Dropped, OSError):
            pass
        except LogFault as error:
            if not group.is_retired:
                self._node.fail(error)
        if records:
            group.fetched(peer, records)
        else:
            self._read_again(group, peer)

    # Asked by a peer

    def answer(self, request: RepairRange, asked: OpenRequest) -> Answer:
        """Give a peer records that are applied here, each checked."""
        group = self._node.group(request.group)
        # A record that is not applied here may still be superseded, and would mend nothing.
        high = min(request.high, group.machine.applied + 1) if group is not None else 0
        if group is None or not 0 < request.low < high:
            message = f"this node has not applied record {request.low} of group {request.group}"
            return ErrorReply("unavailable", message)

        def read(records: list[Record]) -> Answer:
            return WithBody(RepairedRange(len(records)), [record.encoded for record in records])

        def failed(error: BaseException) -> ErrorReply:
            if isinstance(error, RotFound):
                self.found(error)
            elif not isinstance(error, Dropped | OSError):
                self._node.fail(error)
            return ErrorReply("unavailable", f"it cannot be read here either: {error}")

        asked.connection.expect(asked.correlation, PIECE_BYTES)
        return asked.run_on(self._reader, partial(_sound, group, request.low, high), read, failed)

    # Abstaining

    def note_loss(self, group: Group) -> None:
        """A replica lacks records that it acknowledged: note the loss, so that the replica abstains
        after a restart, and stop the node."""
        if group in self._returning:
            return
        self._returning.add(group)
        why = (
            f"records after {group.store.last_index} of partition group {group.number} were "
            "acknowledged here and are gone: the disk lost synced records"
        )

        def done(_: object, error: BaseException | None) -> None:
            again = "start the node again: its replica abstains until it holds them again"
            self._node.fail(error or RecordsLost(f"{why}; {again}"))

        self._disk.submit(partial(group.store.note_loss, why), done)

    def end_abstention(self, group: Group) -> None:
        """A replica that was cut holds all again: its vote counts once the disk has no note."""
        if group in self._returning:
            return
        self._returning.add(group)

        def done(_: object, error: BaseException | None) -> None:
            self._returning.discard(group)
            if error is None:
                group.raft.end_abstention()
                group.abstains = ""
                self._node.mark(group)
            elif not group.is_retired:
                self._node.fail(error)

        self._disk.submit(group.store.end_abstention, done)


def _sound(group: Group, low: int, high: int) -> list[Record]:
    """On the reading thread: sound records at the start of a range, a piece at the most."""
    while True:
        try:
            return group.store.read(low, high, PIECE_BYTES)
        except RotFound:
            if high == low + 1:
                raise
            # The rotten record may stand further on: try the first half.
            high = (low + high) // 2


async def _ask_peer(link: PeerLink, number: int, low: int, high: int) -> list[Record]:
    """The records that one peer gives. Raises `NobodyHas` with the reason. Cancelling drops the
    answer."""
    request = RepairRange(number, low, high)
    try:
        with trio.fail_after(ASK_SECONDS_MAX):
            _, body = await link.ask_with_body(FrameKind.REPAIR, request, RepairedRange)
        records = decode_many(body)
    except Unavailable as error:
        raise NobodyHas(str(error)) from error
    except trio.TooSlowError as error:
        raise NobodyHas("no answer") from error
    except CorruptRecord as error:
        raise NobodyHas(f"its answer was damaged: {error}") from error
    if not records or records[0].index != low or len(records) > high - low:
        raise NobodyHas("its answer was for other records")
    return records
