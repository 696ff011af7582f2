"""After the heal: the cluster must come back to life, and must hold all that it promised.

1. dead nodes are started, and every partition group has a leader again;
2. damaged nodes become whole by themselves; a new node replaces each one that says that it cannot;
   and data groups have as many voters as they were founded with, if there are nodes for them, and
   nodes that gave up a group have deleted its log;
3. users have their rights back, sends succeed, producers end, consumers read everything;
4. all replicas come level, and every disk can be read;
5. a node whose index files are deleted writes them again;
6. groups that have nodes to move to do so, also while one node, which leads them later, does not
   hear the catalog's leader, while a voter is down and the leader stands still, while a voter's
   answers do not reach the leader, and while the members that come do not reach each other. The
   groups have leaders after all machines have lost their power, the last time without a machine
   that led.
   Clients send nothing by then, so the records of these changes are the last ones.

Each step has a time limit. A late step breaks V1, V3, V5 or V11, and is the last: others need it.

In *liveness mode* a random quorum is healed and the rest stays dead, as long as every partition
group keeps a majority of its voters: the product promises that a minority may fail for good.

Sources: VOPR's liveness mode; Jepsen's final generators.
"""

import math
from collections.abc import Callable, Container, Set
from contextlib import suppress
from functools import partial
from itertools import combinations

import trio

from raftmq.broker.leader_tasks import PAUSE_SECONDS as LOOK_SECONDS
from raftmq.broker.replica.group import node_of
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.checks.logs import held_logs
from raftmq.chaos.sim.checks.rebuilding import rebuild_indexes
from raftmq.chaos.sim.cluster import DATA
from raftmq.chaos.sim.faults.members import replace, start_new
from raftmq.chaos.sim.faults.returning import (
    change_all,
    exchanged,
    moved_apart,
    narrowed,
    shrunk,
)
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.sim.workloads.log import LogWorkload
from raftmq.chaos.sim.workloads.registers import RegisterWorkload
from raftmq.chaos.world.disk import MemoryFiles
from raftmq.log.segment import SEGMENT_SUFFIX, SNAPSHOT_SUFFIX
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Catalog, Group
from raftmq.machine.catalog.replicas import member_of

Workload = LogWorkload | RegisterWorkload

LEADER_SECONDS = 20.0
"""From the heal until all groups have leaders: ten election timeouts, and a restart."""
START_SECONDS = 0.001
"""Until nodes that the heal starts have processes."""
MEND_SECONDS = 60.0
"""Until damaged nodes are mended or say that they cannot; `_scrub_seconds` come on top."""
REPAIR_SECONDS = 90.0
"""Until nodes that cannot mend themselves are replaced and no group counts on them."""
COPIES_SECONDS = 30.0
"""Until data groups have their number of voters."""
LEFTOVER_SECONDS = 60.0
"""Until nodes have deleted the logs of groups that moved away: a few rounds of asking."""
UNHEARD_SECONDS = 22.0
"""How long a node's catalog is outdated before the node leads, and how long the node leads with
that catalog: longer than `leaving.CATALOG_SECONDS_MAX`."""
STILL_SECONDS_MAX = 10.0
"""Longest pause of a leader after the catalog has changed its group."""
STEPS_SECONDS = 10.0
"""Until a leader has taken its steps after a pause."""
MARK_SECONDS = 5.0
"""Until the voters' logs prove the commit of the last change; a look every second is enough."""
PROGRESS_SECONDS = 20.0
"""Until an operation succeeds."""
PROGRESS_OPERATIONS = 20
"""Operations that have to succeed."""
DRAIN_SECONDS = 60.0
"""Until producers have ended and consumers have read everything."""
LEVEL_SECONDS = 30.0
"""Until all replicas have applied the same."""


class _Hopeless(Exception):
    """A step was late, or half of the nodes broke; the violation that says so is there already."""


async def drain(
    state: RunState,
    workload: Workload,
    *,
    is_liveness: bool = False,
    at_rest: Callable[[], None] = lambda: None,
) -> None:
    """Bring a healed cluster to rest; a late step becomes a violation, and is the last one.

    Args:
        state: the state of the run.
        workload: what clients do.
        is_liveness: whether as many nodes as the groups can bear stay dead.
        at_rest: called when clients have nothing left to do, and before members change.
    """
    with suppress(_Hopeless):
        await _drain(state, workload, is_liveness=is_liveness)
        at_rest()
        if not is_liveness:
            await _change_members_at_rest(state)


async def _drain(state: RunState, workload: Workload, *, is_liveness: bool) -> None:
    if is_liveness:
        # The heal starts dead nodes: a process must exist before it can be ended.
        await trio.sleep(START_SECONDS)
        _leave_dead(state)
    await _require(state, "V1", LEADER_SECONDS, partial(_is_led, state), "groups without a leader")
    if not is_liveness:
        await _repair(state)
    before = workload.progress

    def is_working() -> bool:
        is_enough = workload.progress >= before + PROGRESS_OPERATIONS
        return is_enough and not state.clients.barred

    await _require(state, "V3", PROGRESS_SECONDS, is_working, "operations do not succeed")
    workload.is_sending = False
    await _require(
        state, "V5", DRAIN_SECONDS, lambda: not workload.producers_left, "clients do not end"
    )
    # The ends are the last ones only when no producer works.
    await workload.find_ends()
    await _require(
        state, "V3", DRAIN_SECONDS, lambda: workload.is_drained, "queues are not read to their end"
    )
    await _level(state)
    if not is_liveness:
        _require_readable(state)
        await rebuild_indexes(state)
        await _level(state)


async def _change_members_at_rest(state: RunState) -> None:
    """Change members, and lose what only a leader's memory knows of the change: together with the
    former members, or together with the leader itself."""
    groups = state.watch.moments.keys() - {SYSTEM_GROUP}
    # If each node votes in each data group, no group has a node to move to.
    if all(set(state.members()) <= state.cluster.members(number) for number in groups):
        return
    await _change_members_unheard(state)
    await _change_members_beside_the_dead(state)
    await _change_all(state, moved_apart)
    await _lose_power(state)
    await _change_all(state, shrunk)
    await _change_all(state, moved_apart)
    await trio.sleep(MARK_SECONDS)
    await _lose_power(state, but=state.cluster.leader(min(groups)))
    await _change_members_beside_the_unheard(state)
    await _change_members_in_the_round_of_another_group(state)
    await _change_members_to_the_parted(state)
    await _level(state)


async def _change_members_unheard(state: RunState) -> None:
    """Groups change while one node and the catalog's leader do not hear each other; then the node
    leads, with an older catalog. V12 judges the changes that the node makes by that catalog."""
    cluster, leader = state.cluster, state.cluster.leader(SYSTEM_GROUP)
    carried = [cluster.members(number) for number in sorted(state.watch.moments)]
    beside = set().union(*(nodes for nodes in carried if leader not in nodes))
    if not beside:
        return
    node = state.random.choice(sorted(beside))
    hosts = state.host(node), state.host(leader)
    for pair in (hosts, hosts[::-1]):
        cluster.network.block(*pair)
    await change_all(state, partial(exchanged, between=(node, leader)))
    await trio.sleep(UNHEARD_SECONDS)
    for number in sorted(state.watch.moments):
        led_by, members = cluster.leader(number), cluster.members(number)
        if led_by and node in members and leader not in members:
            group = cluster.nodes[led_by].groups[number]
            group.transfer(group.voter_of(node))
    await trio.sleep(UNHEARD_SECONDS)
    for pair in (hosts, hosts[::-1]):
        cluster.network.unblock(*pair)
    await _require(state, "V3", REPAIR_SECONDS, partial(_is_whole, state), "groups do not change")


async def _change_members_beside_the_dead(state: RunState) -> None:
    """A voter dies while the leader stands still, and the catalog narrows the group to these two.
    The third voter must stay while the dead one is down: no node can lead without the third."""
    cluster, narrowable = state.cluster, _narrowable(state)
    if not narrowable:
        return
    number, leader, dead = state.random.choice(narrowable)
    process = cluster.processes[leader]
    process.freeze()
    state.hold_down(dead)
    state.kill(dead, power=True, crash=False)
    await change_all(state, partial(narrowed, number=number, to=(leader, dead)))
    await trio.sleep(state.random.uniform(0, STILL_SECONDS_MAX))
    process.thaw()
    await _require_led(state, "groups that change while a voter is down are without a leader")
    state.let_up(dead)
    await _require(state, "V3", REPAIR_SECONDS, partial(_is_whole, state), "groups do not change")


async def _change_members_beside_the_unheard(state: RunState) -> None:
    """The catalog narrows a group to its leader and a voter that cannot open a connection to the
    leader. The voter gets all, and says that it is up; but its votes and answers do not arrive."""
    cluster, narrowable = state.cluster, _narrowable(state)
    if not narrowable:
        return
    number, leader, unheard = state.random.choice(narrowable)
    _lose_way(state, unheard, leader)
    # At once: by its own campaign the voter may have the leader elected again, and then lacks a
    # record.
    await change_all(state, partial(narrowed, number=number, to=(leader, unheard)))
    await _require_led(state, "groups that change while a voter is not heard are without a leader")
    cluster.network.lost_names[state.host(leader)] -= 1
    await _require(state, "V3", REPAIR_SECONDS, partial(_is_whole, state), "groups do not change")


async def _change_members_in_the_round_of_another_group(state: RunState) -> None:
    """As above, for a group whose voter was heard in an earlier round. Its place in the catalog
    changes while its leader asks for another group, whose newcomer hangs."""
    cluster, chief = state.cluster, state.cluster.leader(SYSTEM_GROUP)
    choices = [
        (number, leader, unheard, other, hanging)
        for number, leader, unheard in _narrowable(state)
        for other in sorted(state.watch.moments.keys() - {SYSTEM_GROUP, number})
        if leader in cluster.members(other)
        for hanging in state.members()
        if hanging not in cluster.members(number) | cluster.members(other) | {chief}
        and _are_led(state, {leader, unheard}, without={hanging})
    ]
    if not choices:
        return
    number, leader, unheard, other, hanging = state.random.choice(choices)
    node = cluster.nodes[leader]
    led_by = cluster.leader(other)
    if led_by != leader:
        group = cluster.nodes[led_by].groups[other]
        group.transfer(group.voter_of(leader))
        await trio.sleep(STEPS_SECONDS)
    node.groups[number].call_roll()
    await trio.sleep(1.0)
    _lose_way(state, unheard, leader)
    process = cluster.processes[hanging]
    process.freeze()
    await change_all(state, partial(narrowed, number=other, to=(leader, hanging)))
    await trio.sleep(state.random.uniform(1, 3))
    await change_all(state, partial(narrowed, number=number, to=(leader, unheard)))
    what = "groups that change in the round of another group are without a leader"
    await _require_led(state, what)
    cluster.network.lost_names[state.host(leader)] -= 1
    process.thaw()
    await _require(state, "V3", REPAIR_SECONDS, partial(_is_whole, state), "groups do not change")


async def _change_members_to_the_parted(state: RunState) -> None:
    """All members of a group go, and those that come reach all nodes but each other."""
    cluster, chief = state.cluster, state.cluster.leader(SYSTEM_GROUP)
    choices = [
        (number, pair)
        for number in sorted(state.watch.moments.keys() - {SYSTEM_GROUP})
        for pair in combinations(state.members(), 2)
        if not cluster.members(number).union({chief}).intersection(pair)
        and _are_led(state, set(pair))
    ]
    if not choices:
        return
    number, pair = state.random.choice(choices)
    hosts = state.host(pair[0]), state.host(pair[1])
    for way in (hosts, hosts[::-1]):
        cluster.network.block(*way)
    await change_all(state, partial(narrowed, number=number, to=pair))
    await _require_led(state, "groups that move to parted nodes are without a leader")
    for way in (hosts, hosts[::-1]):
        cluster.network.unblock(*way)
    await _require(state, "V3", REPAIR_SECONDS, partial(_is_whole, state), "groups do not change")


def _are_led(state: RunState, pair: set[int], *, without: Set[int] = frozenset()) -> bool:
    """True if all groups have leaders when these two nodes do not reach each other."""
    sizes = [
        (len(members), len(members - without) - (members >= pair))
        for members in map(state.cluster.members, state.watch.moments)
    ]
    return all(2 * led > size for size, led in sizes)


def _lose_way(state: RunState, node: int, to: int) -> None:
    """The node cannot look up the name of another one, which reaches the node."""
    network, way = state.cluster.network, (state.host(node), state.host(to))
    network.lost_names[way[1]] += 1
    for connection in list(network.connections):
        if connection.ends == way:
            connection.reset()


async def _require_led(state: RunState, otherwise: str) -> None:
    """Leave the leaders time for their steps; then each group has a leader."""
    await trio.sleep(STEPS_SECONDS)
    await _require(state, "V1", LEADER_SECONDS, partial(_is_led, state), otherwise)


def _narrowable(state: RunState) -> list[tuple[int, int, int]]:
    """Data groups of three voters, with their leader and another voter. Neither of these leads the
    catalog."""
    cluster, chief = state.cluster, state.cluster.leader(SYSTEM_GROUP)
    return [
        (number, leader, other)
        for number in sorted(state.watch.moments.keys() - {SYSTEM_GROUP})
        if (leader := cluster.leader(number)) not in (0, chief)
        and len(cluster.members(number)) == 3
        for other in sorted(cluster.members(number) - {leader, chief})
    ]


async def _change_all(
    state: RunState, change: Callable[[RunState, Catalog, Group], Group | None]
) -> None:
    await change_all(state, change)
    await _require(state, "V3", REPAIR_SECONDS, partial(_is_whole, state), "groups do not change")
    await _require(
        state, "V3", LEFTOVER_SECONDS, partial(_has_no_leftovers, state), "logs that moved stay"
    )


async def _lose_power(state: RunState, *, but: int = 0) -> None:
    """All machines lose power; groups have leaders after the restart, with `but` still down."""
    nodes = state.members()
    if but:
        state.hold_down(but)
    for node in nodes:
        state.kill(node, power=True, crash=False)
    what = "groups whose members changed, and that had no message since, are without a leader"
    await _require(state, "V1", LEADER_SECONDS, partial(_is_led, state), what)
    if but:
        state.let_up(but)
    await _level(state)


async def level(state: RunState) -> None:
    """Wait until the replicas of each group are equal, or violate V3, and note the voters."""
    with suppress(_Hopeless):
        await _level(state)


async def _level(state: RunState) -> None:
    await _require(state, "V3", LEVEL_SECONDS, partial(_is_level, state), "replicas differ")
    for group in state.watch.moments:
        state.final_members[group] = state.cluster.members(group)


async def _require(
    state: RunState,
    name: str,
    seconds: float,
    holds: Callable[[], bool],
    otherwise: str,
    *,
    more: Callable[[], float] = lambda: 0.0,
    every: float = 0.05,
) -> None:
    """Wait until `holds()` is true, and look each `every` seconds. A wait of more than `seconds`,
    and of the `more()` that are computed when those have passed, is a violation."""
    began = trio.current_time()
    # Polling costs little in simulated time.
    while not holds():
        if 2 * len(state.cluster.broken) >= len(state.members()):
            raise _Hopeless
        passed = trio.current_time() - began
        if passed >= seconds and passed >= seconds + more():
            break
        await trio.sleep(every)
    else:
        return
    text = f"{otherwise}, {trio.current_time() - began:.0f} s later"
    state.violations.append(Violation(name, state.watch.now_ms, f"{text}; {_situation(state)}"))
    raise _Hopeless


def _situation(state: RunState) -> str:
    """The state of the cluster, for the text of a violation."""
    gone = [n for n in state.members() if n not in state.cluster.nodes]
    words = [f"members {state.members()}", f"down {gone}", f"damaged {sorted(state.damaged)}"]
    words.append(f"leaving {sorted(state.leaving)}")
    catalog = state.newest_catalog()
    if catalog is not None:
        words.append(f"wanted { {n: group.members for n, group in catalog.groups.items()} }")
    words += [f"node {n}: {stopped}" for n, stopped in sorted(state.cluster.stopped.items())]
    for group in sorted(state.watch.moments):
        leader = state.cluster.leader(group)
        voters = sorted(state.cluster.members(group))
        applied = {
            n: node.groups[group].machine.applied
            for n, node in sorted(state.cluster.nodes.items())
            if group in node.groups
        }
        words.append(f"group {group}: leader {leader}, voters {voters}, applied {applied}")
    return "; ".join(words)


def _is_led(state: RunState) -> bool:
    groups = {0, *state.watch.moments}
    return all(
        (leader := state.cluster.leader(group))
        and state.cluster.nodes[leader].groups[group].is_current
        for group in groups
    )


def _is_level(state: RunState) -> bool:
    """Every member's replica has applied what its leader has appended."""
    for group in state.watch.moments:
        leader = state.cluster.leader(group)
        if not leader:
            return False
        last = state.cluster.nodes[leader].groups[group].raft.last_index
        for member in state.cluster.members(group):
            node = state.cluster.nodes.get(member)
            if node is None and member in state.damaged:
                continue
            if node is None and state.is_left_dead(member):
                continue
            if node is None or group not in node.groups:
                return False
            if node.groups[group].machine.applied < last:
                return False
    return True


async def _repair(state: RunState) -> None:
    """Wait until damaged nodes are whole, and replace those that cannot mend themselves."""
    await _require(
        state,
        "V3",
        MEND_SECONDS,
        partial(_is_mended, state),
        "damaged nodes are not whole",
        more=partial(_scrub_seconds, state),
        every=LOOK_SECONDS,  # Each look reads whole disks, which a scrub mends once a second.
    )
    # A pending request names this member, and would be valid once the member has left.
    must_stay = state.clients.must_stay
    await _require(
        state, "V5", DRAIN_SECONDS, lambda: not must_stay, "requests that name members do not end"
    )
    replaced: dict[int, int] = {}
    while old := _next_damaged(state, replaced):
        state.hold_down(old)
        state.kill(old, crash=False)
        new = start_new(state)
        with trio.move_on_after(REPAIR_SECONDS):
            is_granted = False
            while not is_granted:
                is_granted = await replace(state, old, new)
                await trio.sleep(0.5)
        replaced[old] = new
    # A group may be moving from one replaced node to another: all replacements begin first.
    for old, new in replaced.items():
        what = f"node {old} was replaced by {new} and is not forgotten"
        await _require(state, "V3", REPAIR_SECONDS, partial(state.has_left, old), what)
        if old not in state.retired:
            return
    await _require(
        state, "V3", REPAIR_SECONDS, partial(_is_whole, state), "nodes that left are still counted"
    )
    await _require(state, "V11", COPIES_SECONDS, partial(_has_copies, state), "groups lack voters")
    await _require(
        state, "V3", LEFTOVER_SECONDS, partial(_has_no_leftovers, state), "logs that moved stay"
    )
    for node in sorted(state.joining):
        state.retired.add(node)
        state.kill(node, crash=False)


def _scrub_seconds(state: RunState) -> float:
    """Duration of a scrub round on the fullest damaged disk, at its present size: clients go on to
    write. Only the scrub finds rot in records that are applied and that no client reads."""
    rate = state.cluster.log.scrub_bytes_per_second
    disks = (state.cluster.machines[node].disk for node in sorted(state.damaged))
    return max((scrub_looks(disk, rate) * LOOK_SECONDS for disk in disks), default=0.0)


def scrub_looks(disk: MemoryFiles, rate: int) -> int:
    """Number of looks of a scrub round at `rate` bytes a second. Each look reads one snapshot, or a
    second's worth of one segment, however small they are."""
    looks = 0
    for path in disk.paths():
        if path.endswith(SEGMENT_SUFFIX):
            looks += math.ceil(len(disk.inode(path).data) / rate)
        looks += path.endswith(SNAPSHOT_SUFFIX)
    return looks


def _is_mended(state: RunState) -> bool:
    """True if each member that is still damaged has said that it cannot mend itself."""
    state.note_mended(reads_snapshots=False)
    return all(state.is_spoilt(node) for node in state.damaged & state.known)


def _require_readable(state: RunState) -> None:
    """Require that the disks of undamaged members are sound."""
    for node in sorted(set(state.members()) - state.damaged):
        held = held_logs(state.cluster.machines[node].disk.copy(), node)
        if isinstance(held, str):
            text = f"the disk of node {node} is not sound in the end: {held}"
            state.violations.append(Violation("L2", state.watch.now_ms, text))


def _next_damaged(state: RunState, replaced: Container[int]) -> int:
    return next((n for n in sorted(state.damaged & state.known) if n not in replaced), 0)


def _is_whole(state: RunState) -> bool:
    """No node is about to leave or wrongly absent, and no group is between two memberships."""
    catalog = state.newest_catalog()
    if catalog is None or not catalog.absent.isdisjoint(state.cluster.nodes):
        return False
    if any(node.is_leaving for node in catalog.nodes.values()):
        return False
    for number, wanted in catalog.groups.items():
        if not (leader := state.cluster.leader(number)):
            return False
        conf = state.cluster.nodes[leader].groups[number].conf_state
        voters = {member_of(catalog, number, node) for node in catalog.voters(wanted)}
        learners = {member_of(catalog, number, node) for node in wanted.members} - voters
        if conf.voters_outgoing or (voters, learners) != ({*conf.voters}, {*conf.learners}):
            return False
    return True


def _has_copies(state: RunState) -> bool:
    """True if each data group has as many voters as settings and founders say, and not the brokers,
    which are judged here; or one on each node, if these are fewer."""
    catalog = state.newest_catalog()
    if catalog is None:
        return False
    founders = state.cluster.peers
    wanted = min(state.cluster.settings(founders[0].id).node.replicas, len(founders))
    staying = sum(not node.is_leaving for node in catalog.nodes.values())
    return all(
        number == SYSTEM_GROUP or len(state.cluster.members(number)) >= min(wanted, staying)
        for number in state.watch.moments
    )


def _has_no_leftovers(state: RunState) -> bool:
    """No member's disk has a segment of a group that the catalog places elsewhere."""
    catalog = state.newest_catalog()
    if catalog is None:
        return False
    # A node that asked to be let in again has heard nothing from the cluster yet.
    for node in catalog.nodes.keys() & state.cluster.machines.keys():
        disk = state.cluster.machines[node].disk
        for number, group in catalog.groups.items():
            folder = f"{DATA}/groups/{number:05d}/"
            is_elsewhere = number != SYSTEM_GROUP and node not in group.members
            if is_elsewhere and any(
                path.startswith(folder) and path.endswith(SEGMENT_SUFFIX) for path in disk.paths()
            ):
                return False
    return True


def _leave_dead(state: RunState) -> None:
    """Kill as many nodes for good as every group can bear."""
    candidates = state.members()
    state.random.shuffle(candidates)
    # Damaged nodes first: they will not come back by themselves.
    candidates.sort(key=lambda node: node not in state.damaged)
    dead: set[int] = set()
    for node in candidates:
        if _can_lose(state, dead | {node}):
            dead.add(node)
    for node in sorted(dead):
        state.leave_dead(node)


def _can_lose(state: RunState, dead: set[int]) -> bool:
    """True if each group keeps a majority of every half of every membership that may count, and of
    the membership that the catalog wants: a change to the latter may be in the logs already."""
    down = dead | state.damaged
    catalog = state.newest_catalog()
    if catalog is not None:
        for voting in map(catalog.voters, catalog.groups.values()):
            if 2 * len(set(voting) - down) <= len(voting):
                return False
    for node in state.cluster.nodes.values():
        for group in node.groups.values():
            conf = group.conf_state
            for voters in (conf.voters, conf.voters_outgoing):
                if voters and 2 * len(set(map(node_of, voters)) - down) <= len(voters):
                    return False
    return True
