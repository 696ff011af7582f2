"""Members that return: groups that move away and back, nodes that left and come again, lost logs.

A group moves to nodes that do not carry it, as far as there are any, or back to earlier members, in
any order. A log is deleted some ten seconds after its replica moved away, so that within one run
replicas return to nodes that still have the log, that are deleting it, and that have deleted it.

Each function begins one change and does not wait for its end.
"""

from collections.abc import Callable, Mapping

import trio
from msgspec import structs

from raftmq.broker.tickets import Callback
from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Steps
from raftmq.chaos.sim.arena import Make, SimArena
from raftmq.chaos.sim.cluster import DATA, PORT
from raftmq.chaos.sim.faults import members
from raftmq.chaos.sim.run_state import RunState
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
    arena.state.spawn(_move, arena.state)
    yield from ()


async def _move(state: RunState) -> None:
    with trio.move_on_after(PROPOSE_SECONDS):
        while not state.is_healing:
            if _propose(state, lambda catalog: [_moved(state, catalog)]):
                return
            await trio.sleep(0.1)


async def change_all(
    state: RunState, change: Callable[[RunState, Catalog, Group], Group | None]
) -> None:
    """Give each data group the members that `change` plans. Returns when the catalog has them, or
    after `PROPOSE_SECONDS` in vain."""

    def plan(catalog: Catalog) -> list[Group | None]:
        return [change(state, catalog, group) for group in catalog.groups.values() if group.id]

    done = trio.Event()
    with trio.move_on_after(PROPOSE_SECONDS):
        # Polling costs little in simulated time.
        while not _propose(state, plan, done.set):  # noqa: ASYNC110
            await trio.sleep(0.1)
        await done.wait()


def _propose(
    state: RunState,
    plan: Callable[[Catalog], list[Group | None]],
    then: Callable[[], None] = lambda: None,
) -> bool:
    """Propose the planned groups, if there are any; False if the catalog's leader is not ready."""
    leader = state.cluster.leader(SYSTEM_GROUP)
    system = state.cluster.nodes[leader].groups[SYSTEM_GROUP] if leader else None
    # A plan made from a catalog that is about to change would undo that change.
    if system is None or not system.is_current or not system.is_settled:
        return False
    moved = [group for group in plan(state.cluster.nodes[leader].catalog) if group is not None]
    if moved:
        payload = encode_commands([PutGroup(group) for group in moved])
        system.propose(Kind.COMMANDS, payload, Callback(lambda _: then(), lambda _: None))
        state.counts["groups moved"] += len(moved)
        state.agenda.effects["groups moved"] += len(moved)
    return True


def _moved(state: RunState, catalog: Catalog) -> Group | None:
    """A data group with other members; None if no group can move."""
    random, now = state.random, state.agenda.now
    free = [n for n in catalog.groups if n and state.stays_until.get(n, 0.0) <= now]
    if not free:
        return None
    group = catalog.groups[random.choice(free)]
    state.stays_until[group.id] = now + random.uniform(0, STAY_SECONDS_MAX)
    had = state.had_members.setdefault(group.id, [sorted(group.founders)])
    if sorted(group.members) not in had:
        had.append(sorted(group.members))
    able = _able(state, catalog)
    known = [each for each in had if able.issuperset(each) and each != sorted(group.members)]
    if not known or random.random() >= BACK_SHARE:
        return _moved_away(state, catalog, group)
    members = list(random.choice(known))
    random.shuffle(members)
    return structs.replace(group, members=members)


def _moved_away(
    state: RunState, catalog: Catalog, group: Group, *, size: int = 0, staying: int = 0
) -> Group | None:
    """A group on other nodes, as far as there are any, and `staying` of its own; None if the nodes
    would be the same, or too few."""
    size = size or len(group.members)
    able = _able(state, catalog)
    away, here = sorted(able.difference(group.members)), sorted(able & set(group.members))
    state.random.shuffle(away)
    state.random.shuffle(here)
    members = (away[: size - staying] + here)[:size]
    if sorted(members) == sorted(group.members) or len(members) < size:
        return None
    return structs.replace(group, members=members)


def moved_apart(state: RunState, catalog: Catalog, group: Group) -> Group | None:
    """A group on as many nodes as it was founded on, all but one of them new, if possible."""
    moved = _moved_away(state, catalog, group, size=len(group.founders), staying=1)
    # The node that stays comes first, and leads: no new leader's record follows the change.
    return moved and structs.replace(moved, members=moved.members[::-1])


def exchanged(
    state: RunState, catalog: Catalog, group: Group, *, between: tuple[int, int]
) -> Group | None:
    """A group of three that keeps the first node of `between`, never has the second, and exchanges
    another member; None if that is impossible."""
    node, apart = between
    free = sorted(_able(state, catalog) - {*group.members, apart})
    others = [each for each in group.members if each not in between]
    if node not in group.members or apart in group.members or not others or not free:
        return None
    return structs.replace(group, members=[others[0], node, state.random.choice(free)])


def narrowed(
    state: RunState, catalog: Catalog, group: Group, *, number: int, to: tuple[int, int]
) -> Group | None:
    """The group `number` on two nodes; None for the others."""
    return structs.replace(group, members=list(to)) if group.id == number else None


def shrunk(state: RunState, catalog: Catalog, group: Group) -> Group | None:
    """A group on one of its nodes."""
    here = sorted(_able(state, catalog) & set(group.members))
    return structs.replace(group, members=[state.random.choice(here)]) if here else None


def _able(state: RunState, catalog: Catalog) -> set[int]:
    return {node.id for node in catalog.nodes.values() if not node.is_leaving} - state.damaged


def return_node(arena: SimArena, event: Event) -> Steps:
    """A node that left is added again under its old number, perhaps with an empty disk; if none
    has left, one leaves."""
    state = arena.state
    gone = [n for n in sorted(state.retired) if n not in state.damaged and not state.is_spoilt(n)]
    if not gone:
        arena.remove_member(event.nodes[0])
        return
    node = arena.random.choice(gone)
    state.hold_down(node)
    state.kill(node, crash=False)
    if event.fault == "return-blank":
        state.cluster.wipe(node)
    state.counts["returned"] += 1
    state.agenda.effects["nodes that returned"] += 1
    state.retired.discard(node)
    state.joining.add(node)
    state.let_up(node)
    state.spawn(_add_again, state, node)
    yield from ()


async def _add_again(state: RunState, node: int) -> None:
    async def change(mq: Client) -> None:
        timeout = members.CHANGE_SECONDS
        await mq.admin.add_node(node, state.host(node), PORT, timeout=timeout)

    await members.ask(state, change)


def lose_group(arena: SimArena, event: Event) -> Steps:
    """A node loses the log of one group while it is down, and nothing else. Some nodes crash again
    while they begin the next log."""
    state = arena.state
    for node in event.nodes:
        disk = state.cluster.machines[node].disk
        numbers = [name for name in disk.list(f"{DATA}/groups") if name.isdigit()]
        if not state.may_damage(node) or not numbers:
            state.counts["damage withheld"] += 1
            continue
        number = state.random.choice(sorted(numbers))
        state.hold_down(node)
        state.kill(node)
        # The replica is not renamed: under the same member id its next log must hold all promises.
        state.note_damage(node, forgets=False)
        state.watch.note_deleted(node, int(number))
        folder = f"{DATA}/groups/{number}"
        for name in disk.list(folder):
            disk.unlink(f"{folder}/{name}")
        disk.sync_folder(folder)
        if state.random.random() < CRASH_AGAIN_SHARE:
            point = state.random.choice(NEXT_LOG_FAILPOINTS)
            disk.crash_at_failpoint(point, after=state.random.random() < 0.5)
        state.let_up(node)
    yield from ()


def crash_write(arena: SimArena, event: Event) -> Steps:
    """A process ends right after its next write or sync of records; sometimes its machine loses
    power, too."""
    state = arena.state
    for node in state.alive(event.nodes):
        if state.random.random() < 0.5:
            state.lose_power_on_crash(node)
        point = state.random.choice(("append log", "datasync log"))
        state.cluster.machines[node].disk.crash_at_failpoint(point, after=True)
    yield from ()


OWN: Mapping[str, Make] = {
    "move-group": move_group,
    "return-node": return_node,
    "return-blank": return_node,
    "lose-group": lose_group,
    "crash-write": crash_write,
}
"""By name of the fault."""
