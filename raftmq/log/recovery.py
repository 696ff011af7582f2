"""Recovery of a log's folder: the torn end of a crash is cut, rot is an error.

The caller decides about rot: `LogStore.open` with `mends` rewrites it, or cuts it and abstains
(`raftmq.log.cutting`); without `mends` the error stands.

Recovery reads the headers of all segments, maps the index files of the sealed ones, and scans the
few that have none, normally the last. It finds the first frame that does not check out and asks
whether that is the mark of a crash or of rot:

    ... frame | mark | frame | frame | mark | fra???                  torn: nothing vouches for it
    ... frame | mark | fra???? frame | mark | frame |                 rot: the second mark vouches

A mark says that all before its `durable` byte was synced when it was written. So an invalid frame
at X is *rot* if a valid mark with `durable` above X stands anywhere behind it, or if X is in a
segment that is not the last (each is synced before the next begins); such bytes were durable, and
records in them may have been acknowledged. Otherwise nothing shows that the frame's write was ever
synced, no record of that write was acknowledged, and the file is cut at X. Bytes that the disk
cannot read are never taken for torn ones: they are rot, with or without such a mark.

Steps, in order:

1. names ending in `.new` are removed;
2. segments that a snapshot replaced, or that retention was removing, are removed for good;
3. sequences must be gapless;
4. the last segment is cut if its end is torn, and synced in any case: bytes that a killed process
   wrote and did not sync are readable, not durable;
5. each segment's first live record must chain to the record before, and a snapshot and the commit
   index must fit; if the snapshot before the first segment is damaged, a newer one has to do, and
   the segment's header names the record before it;
6. snapshots and index files that belong to no segment are removed.

Invariants:
- Only step 4 ever shortens a segment, and only the last one, and never below the byte that a mark
  vouches for. `RotFound` leaves the folder as it was, apart from steps 1, 2 and 4: rot found in
  step 5 comes after the cut of a torn end, which the next start would cut as well.
- With `mends`, a segment with a sound index file is let in, even if its own file is damaged: the
  index knows the records, so the file can be rewritten (`raftmq.log.rewrite`). No byte of that file
  is believed before a read has checked it.
- The commit index is at least the one that the records themselves prove: a leader proposes a
  MEMBERSHIP record only after it applied the one before it, so all but the last one are committed;
  and all records of a sealed segment were applied. This proof does not need the marks, which a torn
  write may lack.
- Recovery is idempotent: a crash inside it, or a second run, leaves the outcome as it is.

Left out: rot in the last write before a crash, after which no mark stood, is taken for a torn end
(`LogStore.mark_idle` keeps that window short). A file that other software cut at a frame's border
looks like a shorter log, unless a later segment or a snapshot contradicts; a newest segment that is
missing too, unless the one before was sealed (`raftmq.log.cutting`).

Sources: Protocol-Aware Recovery (FAST '18) §3.4; etcd's WAL repair.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise, zip_longest
from typing import NamedTuple, NoReturn

from raftmq.errors import CorruptRecord
from raftmq.log.faults import RotFound
from raftmq.log.files import NEW_SUFFIX, UNREADABLE, File, FileSystem, read_filled
from raftmq.log.index_file import IndexDamaged, SegmentIndex, open_index
from raftmq.log.segment import (
    HEADER_BYTES,
    INDEX_SUFFIX,
    MARK_BYTES,
    MARK_MAGIC,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    VOID_SUFFIX,
    HardState,
    Header,
    Identity,
    Link,
    check_identity,
    decode_header,
    decode_mark,
    file_name,
    parse_name,
)
from raftmq.log.snapshot import SnapshotMeta, open_snapshot
from raftmq.log.unsealed import CHUNK_BYTES, Damage, Scan, Unsealed, scan

Segment = Unsealed | SegmentIndex


class Found(NamedTuple):
    """A folder's log after recovery."""

    segments: list[Segment]
    """In log order; the last one is unsealed and active. Empty for a folder without a log."""
    hard_state: HardState
    start: Link
    """The record before the first one kept."""
    end: Link
    """The last record."""
    snapshots: list[SnapshotMeta]
    """Oldest first."""
    torn_bytes_cut: int
    is_marked: bool
    """Whether a mark at the log's end vouches for all before it."""
    rotten: list[RotFound]
    """Sealed segments whose files are missing, or have a wrong size or header."""
    snapshot_fault: RotFound | None = None
    """Damage of the snapshot before the first segment; a newer snapshot is kept, too."""


def recover(
    files: FileSystem,
    folder: str,
    identity: Identity,
    *,
    mends: bool = False,
    abstains: bool = False,
) -> Found:
    """Bring a folder into order and say what it holds.

    With `mends`, damaged segments that can be rewritten are let in; a log that `abstains` may end
    before its commit index.

    Raises:
        RotFound: bytes that were durable do not check out.
        WrongLog, UnsupportedFormat: the folder is not for us.
        OSError: the disk refused to read, cut or sync.
    """
    # Names that a killed process gave are visible, and may not be durable yet.
    files.sync_folder(folder)
    names = files.list(folder)
    rotten: list[RotFound] = []
    headers = _headers(files, folder, names, identity, rotten if mends else None)
    markers = [name for name in names if parse_name(name, VOID_SUFFIX) is not None]
    removed = [name for name in names if name.endswith(NEW_SUFFIX)]
    removed += take_void(headers, names)
    # The markers go last: after a crash they must still say which segments are void.
    _remove(files, folder, removed)
    _remove(files, folder, markers)
    names = sorted(set(names) - set(removed) - set(markers))
    if not headers:
        return _without_segments(folder, names)
    _check_sequences(folder, headers)
    segments, last, torn = _segments(files, folder, headers, set(names), rotten if mends else None)
    segments = _stitch(folder, segments)
    hard_state = last.hard_state
    assert hard_state is not None
    snapshots, faults = _snapshots(files, folder, names, segments, identity)
    start, snapshot_fault = _check_start(folder, headers, segments, snapshots, faults)
    end = _end(segments, start)
    if abstains:
        hard_state = hard_state._replace(commit=min(hard_state.commit, end.index))
    hard_state = hard_state._replace(commit=max(hard_state.commit, _proven(segments)))
    if end.index < hard_state.commit:
        active = segments[-1]
        assert isinstance(active, Unsealed)
        message = f"the log ends at record {end.index}, but {hard_state.commit} was committed"
        raise RotFound(message, file=active.path, position=active.end)
    _remove_orphans(files, folder, names, segments, {start.index, *(m.index for m in snapshots)})
    return Found(
        segments, hard_state, start, end, snapshots, torn, last.is_marked, rotten, snapshot_fault
    )


def _headers(
    files: FileSystem,
    folder: str,
    names: list[str],
    identity: Identity,
    rotten: list[RotFound] | None,
) -> dict[int, Header]:
    """The header of each segment by its name."""
    headers = {}
    for name in names:
        first = parse_name(name, SEGMENT_SUFFIX)
        if first is None:
            continue
        path = f"{folder}/{name}"
        try:
            headers[first] = _header(files, path, first, identity)
        except RotFound:
            # The index of a sealed segment has all that rewriting the segment needs.
            header = None if rotten is None else _header_by_index(files, folder, first, identity)
            if header is None:
                raise
            headers[first] = header
    if rotten is not None:
        _add_missing(files, folder, names, identity, headers)
    return headers


def _header(files: FileSystem, path: str, first: int, identity: Identity) -> Header:
    file = files.open(path)
    header = decode_header(read_filled(file, HEADER_BYTES, 0))
    file.close()
    if header is None:
        raise RotFound("the segment's header fails its CRC-32C", file=path, position=0)
    check_identity(header.identity, identity, path)
    if header.first != first:
        message = f"the header says that the file is named {header.first}: it was renamed"
        raise RotFound(message, file=path, position=16)
    return header


def _add_missing(
    files: FileSystem,
    folder: str,
    names: list[str],
    identity: Identity,
    headers: dict[int, Header],
) -> None:
    """Add headers for index files that stand between segments and lack a segment file."""
    for name in names:
        first = parse_name(name, INDEX_SUFFIX)
        # Behind the newest segment nothing is mended: `cutting` refuses a log whose newest is lost.
        if first is None or first in headers or first > max(headers, default=0):
            continue
        header = _header_by_index(files, folder, first, identity)
        if header is not None:
            headers[first] = header


def _header_by_index(
    files: FileSystem, folder: str, first: int, identity: Identity
) -> Header | None:
    """The header of a sealed segment, from its index file; fields of no use here are 0."""
    try:
        index = open_index(files, f"{folder}/{file_name(first, INDEX_SUFFIX)}", keys=False)
    except (FileNotFoundError, IndexDamaged):
        return None
    if index.name != first:
        return None
    # The flag `replaced` has no use here: a segment is sealed long after the segments that it
    # replaced were removed.
    owner = (identity.cluster_hash(), identity.node, identity.group)
    return Header(index.sequence, first, owner, 0, 0, False, index.seed)


def take_void(headers: dict[int, Header], names: list[str]) -> list[str]:
    """Take out the segments that were replaced or dropped; returns their files' names."""
    sequences = {header.sequence for header in headers.values()}
    marked = {parse_name(name, VOID_SUFFIX) for name in names}
    replaced = {header.sequence for header in headers.values() if header.replaced}
    start = max(sequences & (marked | replaced), default=0)
    void = [first for first, header in headers.items() if header.sequence < start]
    for first in void:
        del headers[first]
    gone = [file_name(first, suffix) for first in void for suffix in (SEGMENT_SUFFIX, INDEX_SUFFIX)]
    return [name for name in gone if name in names]


def _remove(files: FileSystem, folder: str, names: list[str]) -> None:
    for name in names:
        files.unlink(f"{folder}/{name}")
    if names:
        # Void segments must not come back once the one that voids them is gone.
        files.sync_folder(folder)


def _without_segments(folder: str, names: list[str]) -> Found:
    for name in names:
        if parse_name(name, SNAPSHOT_SUFFIX) is not None:
            message = "a snapshot stands here without any segment: the log is missing"
            raise RotFound(message, file=f"{folder}/{name}", position=0)
    return Found([], HardState(), Link(), Link(), [], 0, False, [])


def _check_sequences(folder: str, headers: dict[int, Header]) -> None:
    for before, header in gaps(headers):
        path = f"{folder}/{file_name(header.first, SEGMENT_SUFFIX)}"
        raise RotFound(told_gap(before, header), file=path, position=16)


def gaps(headers: dict[int, Header]) -> Iterator[tuple[Header, Header]]:
    """Segments between which a file is missing, of those that are neither replaced nor dropped."""
    for before, header in pairwise(sorted(headers.values(), key=lambda each: each.sequence)):
        if header.sequence != before.sequence + 1 or header.first <= before.first:
            yield before, header


def told_gap(before: Header, header: Header) -> str:
    """The text of the fault between two segments."""
    return (
        f"segment {header.sequence} of the log follows segment {before.sequence} "
        f"({file_name(before.first, SEGMENT_SUFFIX)}): a file is missing between them"
    )


def _segments(
    files: FileSystem,
    folder: str,
    headers: dict[int, Header],
    names: set[str],
    rotten: list[RotFound] | None,
) -> tuple[list[Segment], Scan, int]:
    """Map or scan each segment; cut the last one's torn end."""
    segments: list[Segment] = []
    ordered = sorted(headers.values(), key=lambda header: header.sequence)
    for header in ordered[:-1]:
        path = f"{folder}/{file_name(header.first, SEGMENT_SUFFIX)}"
        index_name = file_name(header.first, INDEX_SUFFIX)
        index = None
        if index_name in names:
            index = _mapped(files, f"{folder}/{index_name}", path, header, rotten)
        if index is not None:
            segments.append(index)
            continue
        found = scan(files.open(path), path, header)
        if found.damage is not None:
            raise RotFound(found.damage.message, file=path, position=found.damage.position)
        segments.append(found.segment)
    path = f"{folder}/{file_name(ordered[-1].first, SEGMENT_SUFFIX)}"
    last, torn = _last(files, path, ordered[-1])
    return [*segments, last.segment], last, torn


def _mapped(
    files: FileSystem,
    index_path: str,
    path: str,
    header: Header,
    rotten: list[RotFound] | None,
) -> SegmentIndex | None:
    """The segment's index if it checks out and fits the segment; None: it must be built again."""
    try:
        index = open_index(files, index_path, keys=False)
    except IndexDamaged:
        return None
    if (index.name, index.sequence, index.seed) != (header.first, header.sequence, header.crc):
        return None
    fault = outer_damage(files, path, index)
    if fault is not None:
        if rotten is None or not index.count:
            raise fault
        rotten.append(fault)
    return index


def outer_damage(files: FileSystem, path: str, index: SegmentIndex) -> RotFound | None:
    """The damage of a sealed segment that its size and header show; None: there is none."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return RotFound("the file is missing, its index is there", file=path, position=0)
    size, header = file.size(), decode_header(read_filled(file, HEADER_BYTES, 0))
    file.close()
    if size != index.segment_bytes:
        message = f"the file has {size} bytes, its index says {index.segment_bytes}"
        return RotFound(message, file=path, position=min(size, index.segment_bytes))
    if header is None or header.crc != index.seed:
        message = "the segment's header is not the one that its index knows"
        return RotFound(message, file=path, position=0)
    return None


def _last(files: FileSystem, path: str, header: Header) -> tuple[Scan, int]:
    """Scan the active segment and cut the torn end of a crash."""
    file = files.open(path, writable=True)
    found = scan(file, path, header)
    damage, torn = found.damage, 0
    if found.hard_state is None:
        message = "the first mark is damaged; it was durable before the file got its name"
        raise RotFound(message, file=path, position=HEADER_BYTES)
    if damage is not None:
        _refuse_rot(found, damage)
        torn = file.size() - damage.position
        file.truncate(damage.position)
    # A killed process may have written what it did not sync: from here on it counts as durable.
    file.datasync()
    return found, torn


def _refuse_rot(found: Scan, damage: Damage) -> None:
    segment = found.segment
    if not _is_readable(segment.file, damage.position):
        # A torn write can be read. Bytes that the medium lost may have been acknowledged.
        message = f"{damage.message}: the disk cannot read the bytes there"
        raise RotFound(message, file=segment.path, position=damage.position)
    proof = _find_proof(segment, damage.position)
    if proof is not None:
        message = f"{damage.message}; the mark at byte {proof} says that it was durable"
        raise RotFound(message, file=segment.path, position=damage.position)


def _is_readable(file: File, position: int) -> bool:
    """Whether the disk can read all bytes from `position` on."""
    try:
        for start in range(position, file.size(), CHUNK_BYTES):
            file.pread(CHUNK_BYTES, start)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return False
    return True


def _find_proof(segment: Unsealed, position: int) -> int | None:
    """Where behind `position` a valid mark says that the byte there was durable."""
    file, size, start = segment.file, segment.file.size(), position
    while start < size:
        data = read_filled(file, CHUNK_BYTES, start)
        at = data.find(MARK_MAGIC)
        while 0 <= at <= len(data) - MARK_BYTES:
            # If bytes are missing before a mark, it stands too early and is true nonetheless. A
            # copy inside a payload is older than that payload's record, and vouches for less.
            mark = decode_mark(data, at, seed=segment.seed, position=None)
            if mark is not None and mark.durable > position:
                return start + at
            at = data.find(MARK_MAGIC, at + 1)
        if start + len(data) >= size:
            break
        # A mark may lie across the border of two chunks.
        start += len(data) - MARK_BYTES + 1
    return None


def _stitch(folder: str, segments: list[Segment]) -> list[Segment]:
    """Let later segments supersede earlier ones, and check that each chains to the one before."""
    joined: list[Segment] = []
    bases = [segment.base for segment in segments]
    lowest_later = [*accumulate(reversed(bases[1:]), min)][::-1]
    for segment, lowest in zip_longest(segments, lowest_later):
        segment = _without_superseded(segment, joined, lowest)
        at = len(joined)
        while at and (joined[at - 1].base > segment.base or joined[at - 1].last >= segment.base):
            at -= 1
            _supersede(folder, joined, at, segment)
        before = joined[-1].last if joined else segment.base - 1
        if before != segment.base - 1:
            message = f"records {before + 1} to {segment.base - 1} are missing before"
            _refuse_link(folder, segment, message)
        if joined and _holds_records(segment):
            previous = last_link(joined)
            if previous is not None and previous.crc != _chain(segment):
                _refuse_link(folder, segment, f"it does not chain to record {previous.index}")
            if isinstance(segment, Unsealed) and previous is not None:
                segment.before = previous
        joined.append(segment)
    return joined


def _without_superseded(segment: Segment, joined: list[Segment], lowest: int | None) -> Segment:
    """A segment, or an empty one if a later segment supersedes all of its records and more.

    The segment before has an index, which lacks the records superseded there. This segment has no
    index yet, so it seems not to follow.
    """
    before = joined[-1].last if joined else segment.base - 1
    is_kept = lowest is None or not lowest <= before + 1 < segment.base
    if is_kept or isinstance(segment, SegmentIndex):
        return segment
    return segment.cut(before + 1, last_link(joined) or Link(before))


def _supersede(folder: str, joined: list[Segment], at: int, later: Segment) -> None:
    earlier = joined[at]
    if isinstance(earlier, SegmentIndex):
        _refuse_link(folder, later, f"it supersedes record {later.base}, which was applied")
    before = later.before if isinstance(later, Unsealed) else Link(later.base - 1)
    joined[at] = earlier.cut(later.base, before)


def _holds_records(segment: Segment) -> bool:
    return segment.last >= segment.base


def last_link(segments: list[Segment]) -> Link | None:
    """The last record in these segments; None if they hold none."""
    for segment in reversed(segments):
        if _holds_records(segment):
            return segment.tail if isinstance(segment, SegmentIndex) else segment.link(segment.last)
    return None


def _refuse_link(folder: str, segment: Segment, message: str) -> NoReturn:
    path = f"{folder}/{file_name(segment.name, SEGMENT_SUFFIX)}"
    raise RotFound(message, file=path, position=HEADER_BYTES)


def _snapshots(
    files: FileSystem, folder: str, names: list[str], segments: list[Segment], identity: Identity
) -> tuple[list[SnapshotMeta], dict[int, RotFound]]:
    """The snapshots that stand just before a segment, oldest first; and the faults of damaged ones.

    A damaged snapshot is left out: the machine can be restored from another one.
    """
    borders = _borders(segments)
    found, faults = [], {}
    for name in names:
        index = parse_name(name, SNAPSHOT_SUFFIX)
        if index is None or index not in borders:
            continue
        try:
            meta = open_snapshot(files, folder, index, identity).meta
            # A received snapshot whose installation a crash prevented may not fit our log.
            if borders[index] in (None, meta.crc):
                found.append(meta)
        except CorruptRecord as error:
            path = f"{folder}/{name}"
            faults[index] = RotFound(str(error), file=path, position=error.position)
    return found, faults


def _borders(segments: list[Segment]) -> dict[int, int | None]:
    """For each segment, the index before it and that record's crc; None before the first."""
    borders: dict[int, int | None] = {}
    crc = None
    for segment in segments:
        borders.setdefault(segment.base - 1, crc)
        previous = last_link([segment])
        crc = previous.crc if previous is not None else crc
    return borders


def _check_start(
    folder: str,
    headers: dict[int, Header],
    segments: list[Segment],
    snapshots: list[SnapshotMeta],
    faults: dict[int, RotFound],
) -> tuple[Link, RotFound | None]:
    """The record before the first one kept, and the fault of the snapshot there; None: no fault."""
    first = segments[0]
    if first.base == 1:
        return Link(), None
    at = first.base - 1
    path = f"{folder}/{file_name(at, SNAPSHOT_SUFFIX)}"
    holder, fault = next(filter(_holds_records, segments), None), None
    if snapshots and snapshots[0].index == at:
        start = snapshots[0].link
    else:
        message = f"the log starts at record {first.base}, and the snapshot before it is missing"
        fault = faults.get(at, RotFound(message, file=path, position=0))
        start = _start_without_snapshot(headers[first.name], segments, snapshots, fault)
    if holder is not None and _chain(holder) != start.crc:
        raise RotFound("the first record does not chain to the snapshot", file=path, position=64)
    if isinstance(first, Unsealed):
        first.before = start
    return start, fault


def _start_without_snapshot(
    header: Header, segments: list[Segment], snapshots: list[SnapshotMeta], fault: RotFound
) -> Link:
    """The record before the first one, as the segment's header names it.

    The records are sound, and a newer snapshot restores the machine: no reason to cut the log.
    """
    replayed = min(each.base for each in segments if isinstance(each, Unsealed))
    can_restore = any(meta.index < replayed for meta in snapshots)
    # A header made from an index has no term. The header of a segment whose first records were
    # superseded names another record.
    if not can_restore or not header.previous_term or header.first != segments[0].base:
        raise fault
    # The timestamp is unknown, and not needed: a newer snapshot has records before it.
    return Link(header.first - 1, header.previous_term, header.previous_crc)


def _chain(segment: Segment) -> int:
    """Crc of the record before the first one in this segment, by the first one's `chain`."""
    return segment.before.crc if isinstance(segment, Unsealed) else segment.first_chain


def _end(segments: list[Segment], start: Link) -> Link:
    end = last_link(segments) or start
    for segment in segments:
        # An empty segment learns here which record its first one will follow.
        if isinstance(segment, Unsealed) and not _holds_records(segment):
            segment.before = end if segment.base == end.index + 1 else segment.before
    return end


def _proven(segments: list[Segment]) -> int:
    """An index that is committed for sure, whatever the marks say.

    A mark's commit lags behind the truth. By such a mark a member whose log holds the end of a
    joint membership could forget that the beginning is committed, and elect by the membership
    before.
    """
    sealed = [segment.last for segment in segments if isinstance(segment, SegmentIndex)]
    unsealed = [segment for segment in segments if isinstance(segment, Unsealed)]
    changes = [index for segment in unsealed for index in segment.memberships]
    return max([0, *sealed, *changes[:-1]])


def _remove_orphans(
    files: FileSystem,
    folder: str,
    names: list[str],
    segments: list[Segment],
    snapshots: set[int],
) -> None:
    kept = {file_name(index, SNAPSHOT_SUFFIX) for index in snapshots}
    kept |= {file_name(s.name, INDEX_SUFFIX) for s in segments if isinstance(s, SegmentIndex)}
    derived = (SNAPSHOT_SUFFIX, INDEX_SUFFIX)
    orphans = [
        name
        for name in names
        if name not in kept and any(parse_name(name, suffix) is not None for suffix in derived)
    ]
    _remove(files, folder, orphans)
