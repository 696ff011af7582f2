"""Damage to disks of the core simulator.

Damage is made only where the log can detect it: below a byte that a later mark vouches for. At the
very end of the last file no log of this kind can tell damage from a crash (see *Left out* of
`raftmq.log.recovery`); there the other replicas keep the records, as the atlas ensures.

| fault | effect on the node |
|---|---|
| damage that is found | it stops, or refuses to start, until it is replaced |
| a tail that is cut off | it starts with fewer records; done only if other nodes hold these |

Sources: Protocol-Aware Recovery (FAST '18); "Can Applications Recover from fsync Failures?" (ATC
'20); TigerBeetle's VOPR.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from raftmq.chaos.core.cluster import Cluster
from raftmq.chaos.core.faults import atlas
from raftmq.chaos.core.node import Node
from raftmq.chaos.faults.arena import Skipped
from raftmq.chaos.sectors import SECTOR_BYTES
from raftmq.log.faults import LogFault, RotFound
from raftmq.log.record import Kind, Record
from raftmq.log.segment import (
    HEADER_BYTES,
    MARK_BYTES,
    MARK_MAGIC,
    Identity,
    Mark,
    decode_header,
    decode_mark,
)
from raftmq.log.store import LogSettings, LogStore, Recovered

from .effects import DAMAGED

SHOWN_SHARE, SHOWN_US_MAX = 0.5, 3_000_000
"""Chance that a damaged node restarts, and within which time: damage shows at a start."""
CUT_BYTES_MAX = 400
"""Most bytes of a tail that is cut off."""


@dataclass(frozen=True, slots=True)
class Harm:
    """One fault that damages a disk, as far as the damage depends on it."""

    cluster: Cluster
    fault: str
    """Name of the fault."""
    random: Random
    end_us: int
    """The damaged node restarts, and so shows the damage, before this time only."""


def _check_spare(harm: Harm, node: Node) -> None:
    """Raises `Skipped` if the copy of a node may not be lost."""
    if node.refusal or not node.applied:
        raise Skipped("there is nothing to damage")
    if not atlas.may_lose(harm.cluster, node):
        harm.cluster.counts["spared by the atlas"] += 1
        raise Skipped("too few other copies")


def _damaged(harm: Harm, node: Node) -> None:
    node.is_damaged = True
    harm.cluster.loop.effects[DAMAGED] += 1
    harm.cluster.environment.tell(node.id, f"is damaged: {harm.fault}")
    _may_show(harm, node)


def _may_show(harm: Harm, node: Node) -> None:
    def start_again() -> None:
        if node.is_up and harm.cluster.loop.now_us < harm.end_us:
            node.end(power=False)
            node.start_later()

    if harm.random.random() < SHOWN_SHARE:
        delay_us = int(harm.random.random() * SHOWN_US_MAX)
        harm.cluster.loop.after(max(delay_us, 1), start_again)


def _marks(data: bytes) -> list[Mark]:
    """All valid marks of a segment file."""
    header = decode_header(data)
    marks: list[Mark] = []
    at = HEADER_BYTES if header is not None else -1
    while header is not None and (at := data.find(MARK_MAGIC, at)) >= 0:
        mark = decode_mark(data, at, seed=header.crc, position=at)
        if mark is not None:
            marks.append(mark)
        at += 1
    return marks


def _place(harm: Harm, node: Node) -> tuple[str, int]:
    """A segment file, and the byte up to which a mark vouches for the file."""
    found = []
    for name in node.disk.list("log"):
        if name.endswith(".log"):
            marks = _marks(node.disk.bytes_of(f"log/{name}"))
            vouched = max((mark.durable for mark in marks), default=0)
            if vouched > HEADER_BYTES + MARK_BYTES:
                found.append((f"log/{name}", vouched))
    if not found:
        raise Skipped("no file holds anything that is vouched for")
    return harm.random.choice(found)


def _overwrite(node: Node, path: str, start: int, piece: bytes) -> None:
    """Change bytes in place: open files see the change."""
    inode = node.disk.inode(path)
    inode.data[start : start + len(piece)] = piece
    inode.sync()


def bit_flip(harm: Harm, node: Node) -> None:
    """D11; sometimes in an index, which is no loss: an index is derived from the log."""
    share = harm.cluster.settings.index_damage_share
    if harm.random.random() < share and _flip_index(harm, node):
        return
    _check_spare(harm, node)
    path, vouched = _place(harm, node)
    node.disk.flip(path, harm.random.randrange(vouched * 8))
    _damaged(harm, node)


def _flip_index(harm: Harm, node: Node) -> bool:
    names = [name for name in node.disk.list("log") if name.endswith(".index")]
    if names:
        name = harm.random.choice(names)
        path = f"log/{name}"
        node.disk.flip(path, harm.random.randrange(len(node.disk.bytes_of(path)) * 8))
        node.flipped_indexes.add(name)
        harm.cluster.loop.effects[DAMAGED] += 1
        _may_show(harm, node)
    return bool(names)


def bad_sector(harm: Harm, node: Node) -> None:
    """D12."""
    _check_spare(harm, node)
    path, vouched = _place(harm, node)
    start = harm.random.randrange(vouched) // SECTOR_BYTES * SECTOR_BYTES
    _overwrite(node, path, start, bytes(min(SECTOR_BYTES, vouched - start)))
    _damaged(harm, node)


def unreadable_sector(harm: Harm, node: Node) -> None:
    """D24: reads answer with an error, while the node runs and at its next start."""
    _check_spare(harm, node)
    path, vouched = _place(harm, node)
    start = harm.random.randrange(vouched) // SECTOR_BYTES * SECTOR_BYTES
    node.disk.spoil(path, start, start + SECTOR_BYTES)
    _damaged(harm, node)


def misdirected_write(harm: Harm, node: Node) -> None:
    """D13: a piece of a file takes the place of another piece of the file."""
    _check_spare(harm, node)
    path, vouched = _place(harm, node)
    data = node.disk.bytes_of(path)
    size = min(harm.random.choice((64, 100, SECTOR_BYTES)), vouched // 2)
    start = harm.random.randrange(vouched - size)
    piece = data[harm.random.randrange(vouched - size) :][:size]
    if data[start : start + size] == piece:
        raise Skipped("the same bytes")
    _overwrite(node, path, start, piece)
    _damaged(harm, node)


def lost_write(harm: Harm, node: Node) -> None:
    """D14: zeros in place of one write, which lies between two marks."""
    _check_spare(harm, node)
    path, vouched = _place(harm, node)
    marks = [mark for mark in _marks(node.disk.bytes_of(path)) if mark.position < vouched]
    if len(marks) < 3:
        raise Skipped("too few writes")
    at = harm.random.randrange(1, len(marks) - 1)
    start, stop = marks[at].position, marks[at + 1].position
    _overwrite(node, path, start, bytes(stop - start))
    _damaged(harm, node)


def lost_hard_state(harm: Harm, node: Node) -> None:
    """D17: a mark, which holds term and vote, is gone; a later mark shows that it was there."""
    _check_spare(harm, node)
    path, vouched = _place(harm, node)
    marks = [m for m in _marks(node.disk.bytes_of(path)) if m.position + MARK_BYTES <= vouched]
    _stop(node)
    _overwrite(node, path, harm.random.choice(marks).position, bytes(MARK_BYTES))
    _damaged(harm, node)
    node.start_later()


def wipe(harm: Harm, node: Node) -> None:
    """D18: as in the broker, the others know the old disk's name and do not let the new one in."""
    _check_spare(harm, node)
    _stop(node)
    _damaged(harm, node)
    node.refuse("its disk was wiped, and the others knew it by another name")


def _stop(node: Node) -> None:
    if node.is_up:
        node.end(power=False)


def cut_tail(harm: Harm, node: Node) -> None:
    """D16: a stopped node's last file has lost its end.

    A log that was cut where no mark vouches looks like an older log. Then the lost tail may hold no
    vote and no change of members, and without this node a majority of the voters must hold each
    lost record.
    """
    _check_spare(harm, node)
    if node.durable.written:
        raise Skipped("it is in the middle of a write")
    path = max(f"log/{name}" for name in node.disk.list("log") if name.endswith(".log"))
    data = node.disk.bytes_of(path)
    size = max(len(data) - harm.random.randint(1, CUT_BYTES_MAX), HEADER_BYTES + MARK_BYTES)
    trial = node.disk.copy()
    trial.put(path, data[:size])
    settings = LogSettings(segment_bytes=harm.cluster.settings.segment_bytes)
    try:
        recovered = LogStore.open(trial, "log", settings, Identity("core", node.id, 0))[1]
    # The log detects this cut: its node refuses to start or abstains, whatever records are gone.
    except RotFound:
        recovered = None
    except LogFault as fault:
        raise Skipped(str(fault)) from fault
    if recovered is not None and not _is_bearable(harm, node, recovered):
        harm.cluster.counts["spared by the atlas"] += 1
        raise Skipped("a vote, a change of members, or too much would be gone")
    _stop(node)
    node.disk.put(path, data[:size])
    if recovered is not None:
        durable = node.durable
        kept = max(recovered.last_index - durable.base, 0)
        durable.restart(durable.base, durable.base_term, durable.records[:kept])
    _damaged(harm, node)
    node.start_later()


def _is_bearable(harm: Harm, node: Node, recovered: Recovered) -> bool:
    durable = node.durable
    if recovered.hard_state[:2] != durable.hard_state[:2]:
        return False
    gone = durable.records[max(recovered.last_index - durable.base, 0) :]
    # A lone voter that forgets a member that it let in would elect itself by its own vote.
    is_told = all(record.kind != Kind.MEMBERSHIP for record in gone)
    return is_told and all(_is_elsewhere(harm, node, record) for record in gone)


def _is_elsewhere(harm: Harm, node: Node, record: Record) -> bool:
    conf = harm.cluster.newest_conf()
    for half in (conf.voters, conf.voters_outgoing):
        others = [harm.cluster.nodes[n] for n in half if n != node.id]
        held = [o for o in others if not o.is_damaged and o.durable.holds(record)]
        if half and 2 * len(held) <= len(half):
            return False
    return True


HARMS: Mapping[str, Callable[[Harm, Node], None]] = {
    "bit-flip": bit_flip,
    "bad-sector": bad_sector,
    "unreadable-sector": unreadable_sector,
    "misdirected-write": misdirected_write,
    "lost-write": lost_write,
    "cut-tail": cut_tail,
    "lost-hard-state": lost_hard_state,
    "wipe": wipe,
}
"""By kind of damage."""
