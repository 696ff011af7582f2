"""Cutting a log before rot that nothing here can mend, and the note that says so: `ABSTAIN`.

Rot in the last segment, or in one without an index file, cannot be mended in place: the damaged
records may never have been committed, so nothing proves a peer's records. The log is cut before the
rot, and the leader sends the rest again. But this member may have acknowledged records that are
cut, or voted by them. So from then on it *abstains*: it follows, and its vote counts for nothing,
until it holds again all that it may have held (`raftmq.consensus.abstaining` says when that is, and
`docs/decisions/0011-repair.md` why that suffices).

The note in the folder, JSON with a checksum, keeps the member abstaining across restarts:

| field | meaning |
|---|---|
| `term` | above every term in which this member can have voted or acknowledged anything |
| `why` | the fault that was found, for people |
| `is_cutting` | true until the log is in order again |

Steps, in order; a crash between any two of them leaves a log that the next start cuts further, or
that is in order:

1. the note is written, synced and named;
2. the sound part of the damaged segment is copied to a `.new` file;
3. the damaged file and all segments after it are renamed, the newest first: `*.rotten-<n>`;
4. the copy gets the damaged file's name.

Invariants:
- No log loses a record or a file unless the note was durable before.
- The term of the note is at least the highest of any mark in the newest segment, plus one; without
  a mark there that can be read, or without that segment, nothing is cut and the node stops.
- No file that was put aside is removed before this member holds all records again: the file may be
  the last copy. Then at most `ASIDE_MAX` files are kept.

Sources: Protocol-Aware Recovery (FAST '18) §3.3 (a node that lost entries must not elect);
"Viewstamped Replication Revisited" (2012) §4.3 (recovery without a vote).
"""

from contextlib import suppress
from typing import NamedTuple

from raftmq.log import checked_json
from raftmq.log.faults import RotFound
from raftmq.log.files import NEW_SUFFIX, File, FileSystem, publish, read_filled
from raftmq.log.recovery import Found, recover
from raftmq.log.segment import (
    HEADER_BYTES,
    INDEX_SUFFIX,
    MARK_BYTES,
    MARK_MAGIC,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    Header,
    Identity,
    decode_header,
    decode_mark,
    file_name,
    parse_name,
)
from raftmq.log.unsealed import CHUNK_BYTES, scan

NOTE_NAME = "ABSTAIN"
ASIDE_SUFFIX = ".rotten-"
REMEDY = (
    "This node's replica cannot be mended here. Replace the node (`raftmq cluster replace`), or "
    "give it back its disk"
)
CUTS_MAX = 1000
"""Each cut takes a file away or lets the log end where it ends, so a few are enough."""
ASIDE_MAX = 8
"""Files put aside that are kept for people once the member holds all again; the oldest go first."""


class Note(NamedTuple):
    """The content of the note; see the heading."""

    term: int
    why: str
    is_cutting: bool


def open_cut(
    files: FileSystem, folder: str, identity: Identity, *, mends: bool, cuts: bool
) -> tuple[Found, Note | None]:
    """Recover a folder; with `cuts`, cut its log before rot.

    Raises as `recover`; and `RotFound` for a log that lost its newest segment, and without `cuts`
    for a log that was cut before.
    """
    note = read_note(files, folder)
    if note is None:
        _refuse_lost_newest(files, folder)
    if note is not None and not cuts:
        message = f"this replica was cut and abstains: {note.why}"
        raise RotFound(message, file=f"{folder}/{NOTE_NAME}", position=0)
    for _ in range(CUTS_MAX):
        try:
            return recover(files, folder, identity, mends=mends, abstains=note is not None), note
        except RotFound as fault:
            if not cuts:
                raise
            cut(files, folder, fault)
            note = read_note(files, folder)
    raise RotFound("the log cannot be brought into order", file=folder, position=0)


def _refuse_lost_newest(files: FileSystem, folder: str) -> None:
    """Refuse a log whose newest segment has an index file: only closed segments get one, so a later
    segment is missing, and with it perhaps a vote in a term that no other file names."""
    names = files.list(folder)
    newest = max(
        (name for name in names if parse_name(name, SEGMENT_SUFFIX) is not None), default=""
    )
    if newest.replace(SEGMENT_SUFFIX, INDEX_SUFFIX) in names:
        raise RotFound(
            "the segment is closed, so a later one existed, and its file is missing: the term of "
            f"the last vote is unknown. {REMEDY}",
            file=f"{folder}/{newest}",
            position=0,
        )


def read_note(files: FileSystem, folder: str) -> Note | None:
    """The folder's note; None: there is none.

    Raises:
        RotFound: the note cannot be read.
    """
    try:
        fields = checked_json.read(files, folder, NOTE_NAME)
        if fields is None:
            return None
        return Note(int(fields["term"]), str(fields["why"]), bool(fields["is_cutting"]))
    except (ValueError, KeyError, TypeError) as error:
        path = f"{folder}/{NOTE_NAME}"
        raise RotFound(f"the note cannot be read: {error}", file=path, position=0) from error


def write_note(files: FileSystem, folder: str, note: Note) -> None:
    """Write the note; durable on return."""
    checked_json.write(files, folder, NOTE_NAME, note._asdict())


def remove_note(files: FileSystem, folder: str) -> None:
    """The member counts again; durable on return. Only the newest of the files put aside stay."""
    aside = [name for name in files.list(folder) if ASIDE_SUFFIX in name]
    # The files go before the note: after a crash only the note brings the member here again.
    for name in sorted(aside, key=_number)[:-ASIDE_MAX]:
        files.unlink(f"{folder}/{name}")
    with suppress(FileNotFoundError):
        files.unlink(f"{folder}/{NOTE_NAME}")
    files.sync_folder(folder)


def cut(files: FileSystem, folder: str, fault: RotFound) -> None:
    """Take the damaged records, and all after them, out of a log.

    Raises:
        RotFound: the term that the member was in cannot be told; nothing was touched.
        OSError: the disk refused.
    """
    name = fault.file.rpartition("/")[2]
    names = files.list(folder)
    segments = sorted(
        first for each in names if (first := parse_name(each, SEGMENT_SUFFIX)) is not None
    )
    _write_cutting(files, folder, segments, fault)
    damaged = parse_name(name, SEGMENT_SUFFIX)
    # A snapshot is missing or rotten, and no other restores the machine: without the state before
    # them the records are of no use.
    if damaged is None:
        gone = [file_name(first, SEGMENT_SUFFIX) for first in segments] or [
            each for each in names if parse_name(each, SNAPSHOT_SUFFIX) is not None
        ]
    else:
        gone = [file_name(first, SEGMENT_SUFFIX) for first in segments if first >= damaged]
    kept = 0 if damaged is None or name not in names else _sound_bytes(files, folder, name, fault)
    if kept:
        _copy(files, f"{folder}/{name}", kept)
    # An index without its segment would ask for that segment.
    indexes = [file_name(i, INDEX_SUFFIX) for i in _indexes_from(names, damaged or 0)]
    for each in indexes:
        files.unlink(f"{folder}/{each}")
    _put_aside(files, folder, names, sorted(gone, reverse=True))
    if kept:
        publish(files, folder, name)


def _write_cutting(files: FileSystem, folder: str, segments: list[int], fault: RotFound) -> None:
    note = read_note(files, folder)
    term = 0
    if segments:
        # The newest segment has the marks of the last votes: its terms bound all earlier ones.
        newest = f"{folder}/{file_name(segments[-1], SEGMENT_SUFFIX)}"
        highest = _highest_term(files, newest)
        # A cut that a crash interrupted may have put the segment with the last marks aside; its
        # note has their term.
        if highest is None and (note is None or not note.is_cutting):
            raise RotFound(
                f"{fault}; the term of the last vote is unknown, as the newest segment has no "
                f"readable mark. {REMEDY}",
                file=newest,
                position=0,
            ) from fault
        term = 0 if highest is None else highest + 1
    if note is not None:
        term = max(term, note.term)
    write_note(files, folder, Note(term, str(fault), is_cutting=True))


def _highest_term(files: FileSystem, path: str) -> int | None:
    """The highest term in any mark of a segment, damaged or not; None if none can be read."""
    file = files.open(path)
    header = decode_header(read_filled(file, HEADER_BYTES, 0))
    if header is None:
        return None
    highest, size, start = None, file.size(), 0
    while start < size:
        data = read_filled(file, CHUNK_BYTES, start)
        at = data.find(MARK_MAGIC)
        while at >= 0:
            mark = decode_mark(data, at, seed=header.crc, position=None)
            if mark is not None:
                highest = max(highest or 0, mark.hard_state.term)
            at = data.find(MARK_MAGIC, at + 1)
        if start + len(data) >= size:
            break
        start += len(data) - MARK_BYTES + 1
    return highest


def _sound_bytes(files: FileSystem, folder: str, name: str, fault: RotFound) -> int:
    """Sound bytes at the beginning of a damaged segment; 0: no part can be kept."""
    path = f"{folder}/{name}"
    file = files.open(path)
    header: Header | None = decode_header(read_filled(file, HEADER_BYTES, 0))
    if header is None or header.first != parse_name(name, SEGMENT_SUFFIX):
        return 0
    found = scan(file, path, header)
    if found.hard_state is None or fault.position != found.segment.end:
        # The file itself is sound, and does not belong to this log.
        return 0
    return found.segment.end


def _copy(files: FileSystem, path: str, size: int) -> None:
    source, target = files.open(path), files.create(path + NEW_SUFFIX)
    _copy_bytes(source, target, size)
    target.datasync()
    target.close()
    source.close()


def _copy_bytes(source: File, target: File, size: int) -> None:
    for start in range(0, size, CHUNK_BYTES):
        target.append([source.pread(min(CHUNK_BYTES, size - start), start)])


def _indexes_from(names: list[str], first: int) -> list[int]:
    found = (parse_name(name, INDEX_SUFFIX) for name in names)
    return [index for index in found if index is not None and index >= first]


def _put_aside(files: FileSystem, folder: str, names: list[str], gone: list[str]) -> None:
    """Rename the damaged file and those after it, in the order of `gone`."""
    # A crash between two renames must not leave a gap before a segment that stays.
    assert gone == sorted(gone, reverse=True), "older files go before newer ones"
    number = max((_number(name) for name in names if ASIDE_SUFFIX in name), default=0)
    for name in gone:
        number += 1
        files.rename(f"{folder}/{name}", f"{folder}/{name}{ASIDE_SUFFIX}{number}")
    files.sync_folder(folder)


def _number(name: str) -> int:
    digits = name.rpartition(ASIDE_SUFFIX)[2]
    return int(digits) if digits.isdigit() else 0
