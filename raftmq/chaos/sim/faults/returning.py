"""Members that return: groups that move away and back, nodes that left and come again, lost logs.

A group moves to nodes that do not carry it, as far as there are any, or back to earlier members, in
any order. A log is deleted some ten seconds after its replica moved away, so that within one run
replicas return to nodes that still have the log, that are deleting it, and that have deleted it.

Each function begins one change and does not wait for its end.
"""

from collections.abc import Callable, Mapping

import trio
from msgspec import structs

from raftmq.broker.replica.tickets import Callback
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Steps
from raftmq.chaos.sim.arena import Make, SimArena
from raftmq.chaos.sim.cluster import DATA, PORT
from raftmq.chaos.sim.faults import members
from raftmq.chaos.sim.stage import Stage
from raftmq.client import Client
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog, Group, PutGroup
from raftmq.machine.commands import encode_commands

BACK_SHARE = 0.5
"""Share of moves back to earlier members, if the group had others than now."""

STAY_SECONDS_MAX = 25.0
"""Longest rest of a group after a move: some replicas return before their logs are deleted, some
after that."""

CRASH_AGAIN_SHARE = 0.5
"""Share of lost logs after which the node crashes while it begins the next log."""

NEXT_LOG_FAILPOINTS = tuple(
    f"{operation} {kind}"
    for kind in ("json", "log")
    for operation in ("create", "append", "datasync", "rename")
)
"""Failpoints of the disk that a node passes when it begins another log: the node notes the log's
member id in `node.json`."""

PROPOSE_SECONDS = 5.0
"""Longest time of attempts to propose a move: there may be no leader."""


def move_group(arena: SimArena, event: Event) -> Steps:
    """A data group moves."""
    arena.stage.spawn(_move, arena.stage)
    yield from ()


async def _move(stage: Stage) -> None:
    with trio.move_on_after(PROPOSE_SECONDS):
        while not stage.is_healing:
            if _propose(stage, lambda catalog: [_moved(stage, catalog)]):
                return
            await trio.sleep(0.1)


async def change_all(stage: Stage, change: Callable[[Stage, Catalog, Group], Group | None]) -> None:
    """Give each data group the members that `change` plans. Returns when the catalog has them, or
    after `PROPOSE_SECONDS` in vain."""

    def plan(catalog: Catalog) -> list[Group | None]:
        return [change(stage, catalog, group) for group in catalog.groups.values() if group.id]

    done = trio.Event()
    with trio.move_on_after(PROPOSE_SECONDS):
        # Polling costs little in simulated time.
        while not _propose(stage, plan, done.set):  # noqa: ASYNC110
            await trio.sleep(0.1)
        await done.wait()


def _propose(
    stage: Stage,
    plan: Callable[[Catalog], list[Group | None]],
    then: Callable[[], None] = lambda: None,
) -> bool:
    """Propose the planned groups, if there are any; False if the catalog's leader is not ready."""
    leader = stage.cluster.leader(SYSTEM_GROUP)
    system = stage.cluster.nodes[leader].groups[SYSTEM_GROUP] if leader else None
    # A plan made from a catalog that is about to change would undo that change.
    if system is None or not system.is_current or not system.is_settled:
        return False
    moved = [group for group in plan(stage.cluster.nodes[leader].catalog) if group is not None]
    if moved:
        payload = encode_commands([PutGroup(group) for group in moved])
        system.propose(Kind.COMMANDS, payload, Callback(lambda _: then(), lambda _: None))
        stage.counts["groups moved"] += len(moved)
        stage.agenda.effects["groups moved"] += len(moved)
    return True


def _moved(stage: Stage, catalog: Catalog) -> Group | None:
    """A data group with other members; None if no group can move."""
    random, now = stage.random, stage.agenda.now
    free = [n for n in catalog.groups if n and stage.stays_until.get(n, 0.0) <= now]
    if not free:
        return None
    group = catalog.groups[random.choice(free)]
    stage.stays_until[group.id] = now + random.uniform(0, STAY_SECONDS_MAX)
    had = stage.had_members.setdefault(group.id, [sorted(group.founders)])
    if sorted(group.members) not in had:
        had.append(sorted(group.members))
    able = _able(stage, catalog)
    known = [each for each in had if able.issuperset(each) and each != sorted(group.members)]
    if not known or random.random() >= BACK_SHARE:
        return _moved_away(stage, catalog, group)
    members = list(random.choice(known))
    random.shuffle(members)
    return structs.replace(group, members=members)


def _moved_away(
    stage: Stage, catalog: Catalog, group: Group, *, size: int = 0, staying: int = 0
) -> Group | None:
    """A group on other nodes, as far as there are any, and `staying` of its own; None if the nodes
    would be the same, or too few."""
    size = size or len(group.members)
    able = _able(stage, catalog)
    away, here = sorted(able.difference(group.members)), sorted(able & set(group.members))
    stage.random.shuffle(away)
    stage.random.shuffle(here)
    members = (away[: size - staying] + here)[:size]
    if sorted(members) == sorted(group.members) or len(members) < size:
        return None
    return structs.replace(group, members=members)


def moved_apart(stage: Stage, catalog: Catalog, group: Group) -> Group | None:
    """A group on as many nodes as it was founded on, all but one of them new, if possible."""
    moved = _moved_away(stage, catalog, group, size=len(group.founders), staying=1)
    # The node that stays comes first, and leads: no new leader's record follows the change.
    return moved and structs.replace(moved, members=moved.members[::-1])


def exchanged(
    stage: Stage, catalog: Catalog, group: Group, *, between: tuple[int, int]
) -> Group | None:
    """A group of three that keeps the first node of `between`, never has the second, and exchanges
    another member; None if that is impossible."""
    node, apart = between
    free = sorted(_able(stage, catalog) - {*group.members, apart})
    others = [each for each in group.members if each not in between]
    if node not in group.members or apart in group.members or not others or not free:
        return None
    return structs.replace(group, members=[others[0], node, stage.random.choice(free)])


def narrowed(
    stage: Stage, catalog: Catalog, group: Group, *, number: int, to: tuple[int, int]
) -> Group | None:
    """The group `number` on two of its nodes; None for the others."""
    return structs.replace(group, members=list(to)) if group.id == number else None


def shrunk(stage: Stage, catalog: Catalog, group: Group) -> Group | None:
    """A group on one of its nodes."""
    here = sorted(_able(stage, catalog) & set(group.members))
    return structs.replace(group, members=[stage.random.choice(here)]) if here else None


def _able(stage: Stage, catalog: Catalog) -> set[int]:
    return {node.id for node in catalog.nodes.values() if not node.is_leaving} - stage.damaged


def return_node(arena: SimArena, event: Event) -> Steps:
    """A node that left is added again under its old number, perhaps with an empty disk; if none
    has left, one leaves."""
    stage = arena.stage
    gone = [n for n in sorted(stage.retired) if n not in stage.damaged and not stage.is_spoilt(n)]
    if not gone:
        arena.remove_member(event.nodes[0])
        return
    node = arena.random.choice(gone)
    stage.hold_down(node)
    stage.kill(node, crash=False)
    if event.fault == "return-blank":
        stage.cluster.wipe(node)
    stage.counts["returned"] += 1
    stage.agenda.effects["nodes that returned"] += 1
    stage.retired.discard(node)
    stage.joining.add(node)
    stage.let_up(node)
    stage.spawn(_add_again, stage, node)
    yield from ()


async def _add_again(stage: Stage, node: int) -> None:
    async def change(mq: Client) -> None:
        timeout = members.CHANGE_SECONDS
        await mq.admin.add_node(node, stage.host(node), PORT, timeout=timeout)

    await members.ask(stage, change)


def lose_group(arena: SimArena, event: Event) -> Steps:
    """A node loses the log of one group while it is down, and nothing else. Some nodes crash again
    while they begin the next log."""
    stage = arena.stage
    for node in event.nodes:
        disk = stage.cluster.machines[node].disk
        numbers = [name for name in disk.list(f"{DATA}/groups") if name.isdigit()]
        if not stage.may_damage(node) or not numbers:
            stage.counts["damage withheld"] += 1
            continue
        number = stage.random.choice(sorted(numbers))
        stage.hold_down(node)
        stage.kill(node)
        # The replica is not renamed: under the same member id its next log must hold all promises.
        stage.note_damage(node, forgets=False)
        stage.watch.note_deleted(node, int(number))
        folder = f"{DATA}/groups/{number}"
        for name in disk.list(folder):
            disk.unlink(f"{folder}/{name}")
        disk.sync_folder(folder)
        if stage.random.random() < CRASH_AGAIN_SHARE:
            point = stage.random.choice(NEXT_LOG_FAILPOINTS)
            disk.crash_at_failpoint(point, after=stage.random.random() < 0.5)
        stage.let_up(node)
    yield from ()


def crash_write(arena: SimArena, event: Event) -> Steps:
    """A process ends right after its next write or sync of records; sometimes its machine loses
    power, too."""
    stage = arena.stage
    for node in stage.alive(event.nodes):
        if stage.random.random() < 0.5:
            stage.lose_power_on_crash(node)
        point = stage.random.choice(("append log", "datasync log"))
        stage.cluster.machines[node].disk.crash_at_failpoint(point, after=True)
    yield from ()


OWN: Mapping[str, Make] = {
    "move-group": move_group,
    "return-node": return_node,
    "return-blank": return_node,
    "lose-group": lose_group,
    "crash-write": crash_write,
}
"""By name of the fault."""
