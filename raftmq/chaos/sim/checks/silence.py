"""A silence after the heal: all clients stand still, and only timers have work to do.

Under traffic each new record arms timers again, so traffic hides a forgotten timer. In the silence
no request comes. One node stands still as well, and each leader hands over to that node in vain:
proposals of the leader are refused for that long. Leases run out meanwhile, and redeliveries fall
due.

A leader that is able to let time pass and does not is in breach of V8. A leader is able if it is
committed and applied to the end of its log and hands over to no other member.

Invariants:
- A node whose clock was wrong is not judged: a timer is armed by the clock of that moment.

Left out: a silence in workloads whose checks rest on clients that never stand still.

Sources: our own; a Tick that was refused once and never proposed again.
"""

from functools import partial
from random import Random

import trio

from raftmq.broker.replica.group import Group
from raftmq.chaos.outcome import Violation
from raftmq.chaos.sim.run_state import RunState
from raftmq.machine.machine import PartitionMachine

SILENCE_SECONDS = 9.0
"""Two of the longest leases of `workloads.popping`."""
STILL_SECONDS = 8.0
"""How long the node stands still."""
HAND_OVER_SECONDS = (0.5, 3.5)
"""When leaders hand over, from the beginning of the silence."""
LOOK_SECONDS = 0.1
OVERDUE_SECONDS_MAX = 3.0
"""Longest time from a due timer to the proposal of the record that lets time pass: a second after a
refusal, and the rest for a slow disk."""


async def keep_silence(state: RunState, *, seed: int) -> None:
    """Stop all clients for a while, and judge the leaders."""
    if not state.cluster.processes:
        # All nodes broke on bugs: the drain says so.
        return
    # A generator of its own: the other draws of the run stay as they are.
    random = Random(f"silence {seed}")
    clients = [state.clients.process(name) for name in state.clients.names()]
    for process in clients:
        process.freeze()
    still = random.choice(sorted(state.cluster.processes))
    victim = state.cluster.processes[still]
    victim.freeze()
    state.agenda.call_after(STILL_SECONDS, victim.thaw)
    for group in sorted(state.watch.moments):
        after = random.uniform(*HAND_OVER_SECONDS)
        state.agenda.call_after(after, partial(_hand_over, state, group, still))
    try:
        await _judge(state)
    finally:
        # A process that stands still cannot even be cancelled.
        for process in clients:
            process.thaw()


def _hand_over(state: RunState, number: int, to: int) -> None:
    """A leader hands over to a node that stands still."""
    leader = state.cluster.leader(number)
    if leader and leader != to:
        group = state.cluster.nodes[leader].groups[number]
        state.counts["hand-overs in silence"] += group.transfer(group.voter_of(to)) is None


async def _judge(state: RunState) -> None:
    overdue: dict[tuple[int, int, int], float] = {}
    end = state.agenda.now + SILENCE_SECONDS
    while state.agenda.now < end:
        now = state.agenda.now
        due = {
            (node.id, group.number, group.raft.term)
            for node in state.cluster.nodes.values()
            for group in node.groups.values()
            if not state.cluster.processes[node.id].is_frozen and _is_due(state, node.id, group)
        }
        overdue = {key: overdue.get(key, now) for key in due}
        late = sorted(key for key, since in overdue.items() if now - since > OVERDUE_SECONDS_MAX)
        if late:
            node, number, _ = late[0]
            text = f"group {number}: node {node} leads, and lets no time pass for a timer"
            state.violations.append(Violation("V8", state.watch.now_ms, f"{text} that is due"))
            return
        await trio.sleep(LOOK_SECONDS)


def _is_due(state: RunState, node: int, group: Group) -> bool:
    """Whether a leader has a due timer and is able to let time pass."""
    machine, raft, clock = group.machine, group.raft, state.cluster.machines[node].clock
    if not isinstance(machine, PartitionMachine) or not group.is_leader or group.stopping:
        return False
    if clock.ahead_ms_max or clock.behind_ms_max or group.full or group.differs:
        return False
    is_idle = machine.applied == raft.commit == raft.last_index
    if not is_idle or raft.status().transferee:
        return False
    timer = machine.next_timer
    return timer is not None and timer <= state.cluster.nodes[node].now_ms()
