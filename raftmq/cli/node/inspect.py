"""`raftmq inspect`: print the contents of a data folder, damaged or not, without changing it.

The folder may belong to one partition group, a node, or a whole local cluster: every folder below
it that holds segments or snapshots is a log. The summary has one line for each log; `--records`
prints each record, sync mark and damaged stretch in their order on disk.

A crash leaves a damaged stretch that reaches the end of the last segment (a *torn tail*): the next
start cuts it, if nothing after it was durable. Other damage is rot, and the exit code is 4.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.output import (
    Lines,
    Result,
    Table,
    bytes_text,
    output_option,
    print_line,
    print_result,
    time_text,
)
from raftmq.machine.queue_numbers import QUEUE_BITS, QUEUE_MASK
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.log.inspect import DamagedItem, Item, RecordItem
    from raftmq.log.record import Record

SUFFIXES = (".log", ".snapshot")


@dataclass(slots=True)
class Summary:
    """The contents of one log, counted."""

    folder: Path
    node: int | None = None
    group: int | None = None
    segments: int = 0
    bytes: int = 0
    snapshots: list[int] = field(default_factory=list)
    indexes: int = 0
    records: Counter[str] = field(default_factory=Counter)
    first: int | None = None
    last: int | None = None
    last_ms: int = 0
    hard_state: tuple[int, int, int] | None = None
    """Term, vote, commit."""
    damaged: "list[DamagedItem]" = field(default_factory=list)
    last_segment: str = ""

    def is_torn(self, damaged: "DamagedItem") -> bool:
        """Whether the damage reaches the end of the last segment, as a crash leaves it."""
        if damaged.path != self.last_segment:
            return False
        return damaged.position + damaged.bytes == Path(damaged.path).stat().st_size

    @property
    def rot(self) -> "list[DamagedItem]":
        """The damage that no crash explains."""
        return [damaged for damaged in self.damaged if not self.is_torn(damaged)]

    def add(self, item: "Item") -> None:
        """Count one item."""
        from raftmq.log import inspect

        match item:
            case inspect.SegmentItem():
                self.segments += 1
                self.bytes += item.bytes
                self.last_segment = item.path
                _, self.node, self.group = item.header.identity
            case inspect.RecordItem():
                self._count(item.record)
            case inspect.MarkItem():
                term, vote, commit = item.mark.hard_state
                self.hard_state = (term, vote, commit)
            case inspect.SnapshotItem():
                self.snapshots.append(item.meta.index)
                self.bytes += item.bytes
            case inspect.IndexItem():
                self.indexes += 1
                self.bytes += item.bytes
            case inspect.DamagedItem():
                self.damaged.append(item)
                # Damage of 0 bytes stands for a missing segment before this one.
                if item.bytes and item.position == 0 and item.path.endswith(".log"):
                    self.segments += 1
                    self.last_segment = item.path
            case inspect.OtherItem():
                pass

    def _count(self, record: "Record") -> None:
        self.records[_kind(record)] += 1
        # A later record with a smaller index supersedes the records from that index on.
        self.first = record.index if self.first is None else min(self.first, record.index)
        self.last, self.last_ms = record.index, record.timestamp

    def plain(self) -> dict[str, Any]:
        """The summary as plain values, for JSON."""
        names = ("term", "vote", "commit")
        hard_state = (
            None if self.hard_state is None else dict(zip(names, self.hard_state, strict=True))
        )
        return {
            "folder": str(self.folder),
            "node": self.node,
            "group": self.group,
            "segments": self.segments,
            "bytes": self.bytes,
            "snapshots": self.snapshots,
            "indexes": self.indexes,
            "records": dict(self.records),
            "first": self.first,
            "last": self.last,
            "last_ms": self.last_ms,
            "hard_state": hard_state,
            "damaged": [
                {**damaged._asdict(), "is_torn_tail": self.is_torn(damaged)}
                for damaged in self.damaged
            ],
        }


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-r", "--records", "is_records", is_flag=True, help="Print every record.")
@click.option("-g", "--group", type=int, help="Only this partition group.")
@click.option("--first", type=int, default=0, help="With --records: from this Raft index on.")
@click.option("--last", type=int, default=1 << 62, help="With --records: up to this Raft index.")
@click.option("--marks", is_flag=True, help="With --records: the sync marks too.")
@output_option()
def inspect(
    folder: Path,
    is_records: bool,
    group: int | None,
    first: int,
    last: int,
    marks: bool,
    output: str,
) -> int:
    """Print the contents of a data folder, damaged or not.

    FOLDER is the folder of a partition group, a node or a local cluster, and stays as it is.

    \b
    raftmq inspect /var/lib/raftmq
    raftmq inspect /var/lib/raftmq/groups/00001 --records --first 4000
    """
    summaries = []
    for log in _logs(folder):
        if group is not None and _number(log) != group:
            continue
        summary = Summary(log)
        if is_records and output == "table":
            click.echo(f"{log}\n{_ROW % _HEADINGS}")
        # Another process may delete what the walk found.
        with suppress(FileNotFoundError):
            for item in _items(log):
                summary.add(item)
                if is_records and _is_wanted(item, first, last, marks=marks):
                    _print_item(item, output)
        summaries.append(summary)
    if not summaries:
        fix = "give the folder that a node's settings name as node.data, or one below it"
        raise Failure(f"{folder} holds no log", fix=fix)
    return print_result(_result(summaries, is_short=is_records), output)


def _logs(folder: Path) -> list[Path]:
    """The folders of logs: this one, or those below it; a folder that vanishes meanwhile is passed
    over.

    Raises:
        PermissionError: a folder below may not be read, so its contents are unknown.
    """

    def refuse(error: OSError) -> None:
        # A folder that may not be read must not count as empty: a log would be missed in silence.
        if not isinstance(error, FileNotFoundError):
            raise error

    return sorted(
        Path(path)
        for path, _, names in os.walk(folder, onerror=refuse)
        if any(name.endswith(SUFFIXES) and name[0].isdecimal() for name in names)
    )


def _number(log: Path) -> int | None:
    return int(log.name) if log.name.isdigit() else None


def _items(log: Path) -> "Iterator[Item]":
    from raftmq.log.files import RealFiles
    from raftmq.log.inspect import inspect_folder

    return inspect_folder(RealFiles(), str(log))


def _is_wanted(item: "Item", first: int, last: int, *, marks: bool) -> bool:
    from raftmq.log.inspect import MarkItem, RecordItem

    if isinstance(item, RecordItem):
        return first <= item.record.index <= last
    return marks or not isinstance(item, MarkItem)


_ROW = "%12s %10s %8s  %-10s %9s  %-24s %s"
_HEADINGS = ("POSITION", "INDEX", "TERM", "KIND", "BYTES", "TIME", "WHAT")


def _print_item(item: "Item", output: str) -> None:
    from raftmq.log import inspect

    plain = _plain_item(item)
    # Printed one by one, in columns of fixed width: a folder may hold millions of records.
    if output == "json":
        print_line(plain)
        return
    match item:
        case inspect.RecordItem():
            record = item.record
            what = _what(record) + (", supersedes" if item.supersedes else "")
            # A leader's first entry carries no time.
            moment = time_text(record.timestamp)[:23] if record.timestamp else ""
            size = len(record.encoded)
            row = (item.position, record.index, record.term, _kind(record), size, moment, what)
            click.echo(_ROW % row)
        case inspect.MarkItem():
            term, vote, commit = item.mark.hard_state
            what = f"vote {vote}, commit {commit}, durable before {item.mark.durable}"
            click.echo(_ROW % (item.mark.position, item.mark.last, term, "mark", "", "", what))
        case inspect.DamagedItem():
            place = (item.position, "", "", "DAMAGED", item.bytes, "", item.message)
            click.echo(_ROW % place)
        case _:
            facts = {k: v for k, v in plain.items() if k not in ("item", "path")}
            words = ", ".join(f"{name} {value}" for name, value in facts.items())
            click.echo(f"# {plain['item']} {Path(item.path).name}: {words}")


def _plain_item(item: "Item") -> dict[str, Any]:
    from raftmq.log import inspect

    match item:
        case inspect.RecordItem():
            return {"item": "record", "path": item.path, **_plain_record(item)}
        case inspect.MarkItem():
            term, vote, commit = item.mark.hard_state
            state = {"term": term, "vote": vote, "commit": commit}
            mark = {"position": item.mark.position, "durable": item.mark.durable, **state}
            return {"item": "mark", "path": item.path, **mark, "last": item.mark.last}
        case inspect.SegmentItem():
            header = {"first": item.header.first, "sequence": item.header.sequence}
            return {"item": "segment", "path": item.path, "bytes": item.bytes, **header}
        case inspect.SnapshotItem():
            meta = {"index": item.meta.index, "term": item.meta.term}
            return {"item": "snapshot", "path": item.path, "bytes": item.bytes, **meta}
        case inspect.IndexItem() | inspect.OtherItem() | inspect.DamagedItem():
            name = type(item).__name__.removesuffix("Item").lower()
            return {"item": name, **item._asdict()}


def _plain_record(item: "RecordItem") -> dict[str, Any]:
    record = item.record
    return {
        "position": item.position,
        "index": record.index,
        "term": record.term,
        "kind": _kind(record),
        "bytes": len(record.encoded),
        "timestamp": record.timestamp,
        "supersedes": item.supersedes,
        "what": _what(record),
    }


def _kind(record: "Record") -> str:
    from raftmq.log.record import Kind

    return Kind(record.kind).name.lower() if record.kind in set(Kind) else f"kind {record.kind}"


def _what(record: "Record") -> str:
    """A record's payload in a few words."""
    import cbor2

    from raftmq.batch import peek
    from raftmq.consensus.changes import decode_change
    from raftmq.errors import CorruptRecord
    from raftmq.log.record import Kind

    try:
        if record.kind == Kind.BATCH:
            head = peek(record.payload)
            end = head.first_sequence + head.count - 1
            place = f"topic {head.queue >> QUEUE_BITS} queue {head.queue & QUEUE_MASK}"
            by = f"producer {head.producer:x} sequence {head.first_sequence}..{end}"
            return f"{counted(head.count, 'message')} for {place}, {by}"
        if record.kind == Kind.COMMANDS:
            return ", ".join(map(_shown, cbor2.loads(bytes(record.payload))))
        if record.kind == Kind.MEMBERSHIP:
            change = decode_change(record.payload)
            singles = [f"{single.kind.name.lower()} {single.node}" for single in change.changes]
            return ", ".join(singles) or "leave joint"
    except (CorruptRecord, cbor2.CBORError, TypeError) as error:
        return f"cannot be read: {error}"
    return ""


def _shown(command: object) -> str:
    """A command as text, without the keys and digests by which somebody could log in."""
    return str(_without_secrets(command))


def _without_secrets(command: object) -> object:
    if isinstance(command, list) and command[:1] in (["once"], ["authored"]):
        return [*command[:2], *map(_without_secrets, command[2:])]
    if isinstance(command, list) and command[:1] in (["put_user"], ["put_token"]):
        return ["..." if isinstance(value, bytes) else value for value in command]
    return command


def _result(summaries: list[Summary], *, is_short: bool) -> Result:
    """The summaries, or with `is_short` only the notes on damage and the exit code."""
    columns = ["FOLDER", ">NODE", ">GROUP", ">SEGMENTS", ">SIZE", "RECORDS", ">BATCHES", ">TERM"]
    columns += [">VOTE", ">COMMIT", "SNAPSHOTS", "LAST WRITTEN", "DAMAGED"]
    table = Table(columns, [_summary_row(summary) for summary in summaries])
    return Result(
        Lines() if is_short else [summary.plain() for summary in summaries],
        [] if is_short else [table],
        notes=[note for summary in summaries for note in _damage_notes(summary)],
        code=ExitCode.UNHEALTHY if any(summary.rot for summary in summaries) else ExitCode.OK,
    )


def _summary_row(summary: Summary) -> list[object]:
    is_empty = summary.first is None
    damage = []
    if summary.damaged:
        torn = len(summary.damaged) - len(summary.rot)
        damage = [f"torn tail {torn}"] * bool(torn) + [f"ROT {len(summary.rot)}"] * bool(
            summary.rot
        )
    return [
        summary.folder,
        *("?" if number is None else number for number in (summary.node, summary.group)),
        summary.segments,
        bytes_text(summary.bytes),
        "-" if is_empty else f"{summary.first}..{summary.last}",
        summary.records["batch"],
        *(summary.hard_state or ("?", "?", "?")),
        ", ".join(map(str, summary.snapshots)) or "-",
        "-" if is_empty else time_text(summary.last_ms)[:23],
        ", ".join(damage) or "-",
    ]


def _damage_notes(summary: Summary) -> Iterator[str]:
    for damaged in summary.damaged:
        place = f"{damaged.path}, byte {damaged.position}, {counted(damaged.bytes, 'byte')}"
        if summary.is_torn(damaged):
            yield f"torn tail: {place}: {damaged.message}; the next start cuts it"
        else:
            yield f"damaged: {place}: {damaged.message}"
