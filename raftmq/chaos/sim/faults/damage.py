"""Damage to disks of the simulated world, while their nodes are down.

Damage is tried on a copy of the disk first. A node may notice the damage, as long as only a
minority is damaged (see `run_state`): the node mends itself. A node that would not notice a loss is
more dangerous: no Raft survives members that forget votes or acknowledged records without a trace,
so such damage is done only where nothing was promised:

| the copy after the damage | what is done |
|---|---|
| shows its damage | the damage, if with it fewer than half of each group are damaged |
| has lost no vote, and nothing committed | the same |
| has lost committed records that a majority of others still holds | the same |
| else | nothing: the damage is withheld, and counted |

A leader that counts on the forgotten records makes such a node stop once (`RecordsLost`) and
abstain from then on.
"""

from collections.abc import Callable, Mapping
from functools import partial

from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.checks.logs import Held, held_logs
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.world import damage
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.log.segment import (
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    file_name,
    parse_name,
)

DAMAGE_SECONDS = 0.2
"""A node is down for this time before its disk is damaged."""

AGAIN_SHARE = 1 / 3
AGAIN_CALLS = 12
"""`AGAIN_SHARE` of the nodes that lost their disk lose power at one of this many first calls to the
new disk: such a node has to come back twice, and may have been let in by the second time."""


Harm = Callable[[RunState, int], None]
"""Does one kind of damage to the disk of a node."""


def harm(how: damage.Damage, *, power: bool = False) -> Harm:
    """Damage that is done while the node is down; then the node may start again."""

    def begin(state: RunState, node: int) -> None:
        state.hold_down(node)
        state.kill(node, power=power)
        state.agenda.call_after(DAMAGE_SECONDS, partial(_damage, state, node, how))

    return begin


def unreadable_sector(state: RunState, node: int) -> None:
    """Sectors become unreadable: before a node starts, or just after it has read its log. In the
    second case the records there may be unapplied, and the node knows only their CRCs."""
    if state.random.random() < 0.5:
        harm(damage.spoil_sectors)(state, node)
        return
    state.kill(node)
    state.once_serving(node, partial(try_damage, state, node, damage.spoil_end))


def _damage(state: RunState, node: int, how: damage.Damage) -> None:
    if not state.is_healing:
        try_damage(state, node, how)
    state.let_up(node)


def try_damage(state: RunState, node: int, how: damage.Damage) -> bool:
    """Damage a node's disk, if the atlas allows that; True if the disk was damaged."""
    disk = state.cluster.machines[node].disk
    trial = disk.copy()
    for path in disk.paths():
        # Some kinds of damage need the earlier syncs, which the copy lacks.
        trial.inode(path).synced = list(disk.inode(path).synced)
    drawn = state.random.getstate()
    if not how(trial, state.random):
        state.counts["nothing to damage"] += 1
        return False
    path = next((p for p in trial.paths() if _differs(disk, trial, p)), "")
    before, after = held_logs(disk.copy(), node), held_logs(trial.copy(), node)
    if isinstance(after, str) and not isinstance(before, str) and _is_spare(trial, path):
        text = f"node {node}: {path} is damaged, all records are sound, and the log: {after}"
        state.violations.append(Violation("L2", state.watch.now_ms, text))
    verdict = _judge(state, node, before, after)
    if verdict == "withheld":
        state.counts["damage withheld"] += 1
        return False
    # Equal draws do to the disk what was tried on the copy.
    state.random.setstate(drawn)
    how(disk, state.random)
    state.counts["damage done"] += 1
    state.agenda.effects["disks damaged"] += 1
    state.watch.note(node, f"disk damaged: {verdict}")
    if verdict == "harmless":
        # Reads by an index pass over such damage; reads without an index may find it, as rot. So
        # the drain must not delete the index files of this node.
        state.was_damaged.add(node)
    else:
        state.note_damage(node)
    return True


def _differs(disk: MemoryFiles, trial: MemoryFiles, path: str) -> bool:
    one, other = disk.inode(path), trial.inode(path)
    return one.data != other.data or one.unreadable != other.unreadable


def _is_spare(disk: MemoryFiles, path: str) -> bool:
    """True if a log must open without this file as with it: not so for segments, and for the only
    snapshot from which the unsealed segments can be applied."""
    folder, _, name = path.rpartition("/")
    names = set(disk.list(folder)) if folder else set()
    index = parse_name(name, SNAPSHOT_SUFFIX)
    if index is None:
        return parse_name(name, INDEX_SUFFIX) is not None
    logs = sorted(n for each in names if (n := parse_name(each, SEGMENT_SUFFIX)) is not None)
    unsealed = [n for n in logs if file_name(n, INDEX_SUFFIX) not in names]
    snapshots = [n for each in names if (n := parse_name(each, SNAPSHOT_SUFFIX)) is not None]
    # A log whose first segment began otherwise than with its first record needs its snapshot.
    is_plain = bool(logs) and min(snapshots) == logs[0] - 1
    return is_plain and any(n < unsealed[0] - 1 for n in snapshots if n != index)


def _judge(
    state: RunState, node: int, before: dict[int, Held] | str, after: dict[int, Held] | str
) -> str:
    """The verdict on a damage: withheld, noticed, forgets, harmless."""
    if isinstance(before, str):
        return "withheld"  # it is damaged already
    # A log that is gone without an error would be forgotten without a trace.
    if isinstance(after, str) or set(before) - set(after):
        return "noticed" if state.may_damage(node) and isinstance(after, str) else "withheld"
    if not state.may_damage(node):
        return "withheld"  # damage that is not noticed at the start may be noticed later
    others: list[dict[int, Held]] = []
    for other in state.members():
        if other != node:
            found = held_logs(state.cluster.machines[other].disk.copy(), other)
            others += [found] if isinstance(found, dict) else []
    verdicts = {_judge_group(state, g, before[g], after[g], others) for g in before}
    return next(word for word in ("withheld", "forgets", "noticed", "harmless") if word in verdicts)


def _judge_group(
    state: RunState, group: int, before: Held, after: Held, others: list[dict[int, Held]]
) -> str:
    # A node that forgets its vote may vote twice in one term.
    if (before.term, before.vote) != (after.term, after.vote):
        return "withheld"
    if before.digest == after.digest and before.last == after.last:
        return "harmless"
    if before.last == after.last:
        return "noticed"  # something else is wrong, which a read will find
    promised = min(before.last, max(state.watch.commits[group], before.commit))
    if after.last >= promised:
        return "forgets"
    holders = sum(held[group].last >= promised for held in others if group in held)
    return "forgets" if 2 * holders > len(state.seats) else "withheld"


def wipe(state: RunState, node: int) -> None:
    """A node comes back with an empty disk."""
    if not _is_taken(state, node):
        return
    state.cluster.wipe(node)
    if state.random.random() < AGAIN_SHARE:
        call = state.random.randint(1, AGAIN_CALLS)
        state.cluster.machines[node].disk.crash_at(call)
    state.let_up(node)


def clone(state: RunState, node: int, source: int) -> None:
    """A node comes back with the disk of another."""
    if not _is_taken(state, node):
        return
    twin = state.cluster.machines[source].disk.copy()
    state.cluster.machines[node].disk.become(twin)
    state.let_up(node)


def _is_taken(state: RunState, node: int) -> bool:
    """End a node whose disk is about to be replaced; False if the atlas spares the disk."""
    if not state.may_damage(node):
        state.counts["damage withheld"] += 1
        return False
    state.hold_down(node)
    state.kill(node)
    state.note_damage(node)
    state.agenda.effects["disks damaged"] += 1
    return True


HARMS: Mapping[str, Harm] = {
    "bit-flip": harm(damage.flip_bit),
    "bad-sector": harm(damage.zero_sector),
    "unreadable-sector": unreadable_sector,
    "misdirected-write": harm(damage.misdirect),
    "lost-write": harm(damage.lose_write, power=True),
    "time-travel": harm(damage.travel),
    "cut-tail": harm(damage.cut_tail),
    "missing-segment": harm(damage.drop_file),
    "lost-hard-state": harm(damage.lose_hard_state),
    "wipe": wipe,
}
"""By kind of damage."""
