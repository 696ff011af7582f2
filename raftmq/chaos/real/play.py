"""One run on real processes: from a schedule to an outcome.

    outcome = run(draw(7, of_world(World.REAL), nodes=3, seconds=60))

1. The nodes start on a network that can fail (`proxy` or `namespaces`) and on the overlay, if there
   is one; clients begin to work.
2. The nemesis plays the schedule; the operator starts nodes that ended.
3. Everything heals. In liveness mode one node stays dead at first, and the rest must make progress.
4. All members must come back and agree; producers end; readers read to the end; a last reader reads
   everything from the start.
5. The history is judged, and the statuses of the nodes.

Two runs of a schedule are alike and not equal: processes, disks and clocks are real. `trace_hash`
names this one run.

Invariants:
- Nothing outlives a run: no process, no mount, no temporary folder.
- A run in which hardly anything was acknowledged, or no fault was made, is vacuous.
"""

import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import trio

from raftmq.chaos.faults import Schedule, World
from raftmq.chaos.outcome import Outcome, Violation
from raftmq.chaos.real.clients.popping import PopWorkload
from raftmq.chaos.real.clients.registers import RegisterWorkload
from raftmq.chaos.real.clients.work import Work
from raftmq.chaos.real.clients.workload import Workload
from raftmq.chaos.real.disk.disks import disks, why_no_overlay
from raftmq.chaos.real.faults.members import are_groups_settled, settle_changes
from raftmq.chaos.real.faults.nemesis import heal, play
from raftmq.chaos.real.network.namespaces import Switch, why_no_namespaces
from raftmq.chaos.real.network.protocol import Network
from raftmq.chaos.real.network.proxy import Proxy
from raftmq.chaos.real.network.rules import Rules
from raftmq.chaos.tally import noted
from raftmq.chaos.workloads.deadlines import Deadlines
from raftmq.chaos.workloads.popping import FEW, groups_of, judge_pop
from raftmq.chaos.workloads.withholding import judge_withheld
from raftmq.checkers import (
    Limit,
    LogRules,
    Report,
    Verdict,
    check_linearizability,
    check_log,
    check_total_queue,
    worst,
)
from raftmq.checkers.history import History, Recorder
from raftmq.errors import RaftmqError
from raftmq.machine.catalog.replicas import node_of
from raftmq.words import counted

from .nodes import Nodes
from .operator import Operator
from .run_state import Goal, RunState, are_outdated, are_reached, goals_of
from .waiting import wait_found, wait_true
from .watch import Watch

NODES = 3
READY_SECONDS_MAX = 40.0
RECOVERY_SECONDS_MAX = 150.0
"""Limit from the heal until all members are up and have caught up; a quiet machine needs some 5 s.
On one with three busy processes for two cores leaders changed for more than a minute."""
LIVENESS_SECONDS_MAX = 40.0
LIVENESS_MESSAGES = 200
"""Messages that the others must acknowledge while one node stays dead."""
DRAIN_QUIET_SECONDS = 90.0
"""Draining ends when no consumer and no last reader has got a message for this time: the length of
a whole drain depends on the machine."""
DRAIN_SECONDS_MAX = 600.0
"""Draining ends after this time even if consumers get messages: messages that are delivered again
and again are no progress."""
ACKED_MIN = 100
"""A run with fewer acknowledged messages is vacuous."""

WORKLOADS: Mapping[str, Callable[..., Work]] = {
    "log": Workload,
    "queue": Workload,
    "register": RegisterWorkload,
    "pop": PopWorkload,
}
"""The clients of each workload; histories are judged as logs with offsets, as one bag of messages,
as linearizable registers, or as consumer groups that pop."""
NETWORKS: Mapping[str, Callable[[Rules, Random], Network]] = {"proxy": Proxy, "namespaces": Switch}
"""The network between nodes: a proxy that knows frames, or the kernel's TCP over a switch that
loses packets."""
LATE_SECONDS_MAX = 5.0
"""Allowed delay of an answer beyond its timeout, on a busy machine."""
AGREEMENT = "R21 states of replicas in the end"
"""Name under which comparisons of the replicas' last states are counted."""
HANDING_MS_MAX = 200
"""Longest pause of a consumer's process between two of its steps, on a busy machine."""
LATEST = 20
"""Events of the time line that a complaint about the end of a run names."""
JUDGE_SECONDS_MAX = 60.0
"""Limit of the search that judges one run's registers."""


def run(
    schedule: Schedule,
    workload: str = "log",
    *,
    is_liveness: bool = False,
    nodes: int = NODES,
    folder: Path | None = None,
    is_overlay_wanted: bool = True,
    network: str = "proxy",
    is_secure: bool = False,
) -> Outcome:
    """Play a schedule.

    Args:
        schedule: the faults, and the length of the run.
        workload: see `WORKLOADS`.
        is_liveness: at the heal one node stays dead for a while; the rest must make progress.
        nodes: founding nodes of the cluster; schedules name them from 1.
        folder: the folder of all files, which is kept; None: a temporary folder.
        is_overlay_wanted: False: no faults of disks; the same where no overlay is possible.
        network: see `NETWORKS`.
        is_secure: all connections are under TLS.

    Raises:
        ValueError: there is no such workload, or no such network on this machine.
    """
    if workload not in WORKLOADS:
        raise ValueError(f"{workload!r} is none of {', '.join(WORKLOADS)}")
    if network not in NETWORKS:
        raise ValueError(f"{network!r} is none of {', '.join(NETWORKS)}")
    if network == "namespaces" and why_no_namespaces():
        raise ValueError(f"no network of namespaces: {why_no_namespaces()}")
    place = folder or Path(tempfile.mkdtemp(prefix="raftmq-chaos-"))
    place.mkdir(parents=True, exist_ok=True)
    can_fail = is_overlay_wanted and not why_no_overlay()
    playing = partial(
        _run,
        schedule,
        workload,
        is_liveness=is_liveness,
        nodes=nodes,
        folder=place,
        can_fail=can_fail,
        network=network,
        is_secure=is_secure,
    )
    try:
        return noted(trio.run(playing))
    finally:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


async def _run(
    schedule: Schedule,
    workload: str,
    *,
    is_liveness: bool,
    nodes: int,
    folder: Path,
    can_fail: bool,
    network: str,
    is_secure: bool,
) -> Outcome:
    recorder = Recorder()
    work = WORKLOADS[workload]
    # A call without a timeout has its client's timeout, which is not known here.
    deadlines = Deadlines(now=trio.current_time, seconds=None, slack_seconds=LATE_SECONDS_MAX)
    with deadlines.watched():
        async with _opened(
            schedule,
            recorder,
            work,
            count=nodes,
            folder=folder,
            can_fail=can_fail,
            network=network,
            is_secure=is_secure,
        ) as state:
            watch, operator = Watch(state), Operator(state)
            is_whole = await _work(state, schedule, watch, operator, is_liveness=is_liveness)
            await watch.look()
            # The kernels' counts are lost when the namespaces end with the run.
            state.counts.update(state.network.counts)
    for text in deadlines.late:
        state.complain("answered-late", text)
    state.compared["answers by their deadlines"] = deadlines.compared.total()
    return _outcome(state, schedule, watch, recorder.history(), workload, is_whole=is_whole)


@asynccontextmanager
async def _opened(
    schedule: Schedule,
    recorder: Recorder,
    work: Callable[..., Work],
    *,
    count: int,
    folder: Path,
    can_fail: bool,
    network: str,
    is_secure: bool,
) -> AsyncIterator[RunState]:
    """The state of a run whose cluster is ready, with its network and its disks."""
    random = Random(f"real {schedule.seed}")
    rules = Rules()
    copies = folder / "copies"
    await trio.Path(copies).mkdir(exist_ok=True)
    async with disks(folder / "disks", seed=schedule.seed, can_fail=can_fail) as made:
        net = NETWORKS[network](rules, Random(random.getrandbits(64)))
        nodes = Nodes(folder, count, network=net, disks=made, is_secure=is_secure)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(net.run)
                for node in nodes.nodes:
                    await nodes.up(node)
                await nodes.wait_ready(timeout=READY_SECONDS_MAX)
                state = RunState(nodes, rules, net, random, nursery, trio.current_time())
                state.workload = work(
                    lambda: state.url, recorder, seed=schedule.seed, complain=state.complain
                )
                state.members, state.used = set(nodes.nodes), set(nodes.nodes)
                state.copies = copies
                for node in nodes.nodes:
                    state.note(node, "serves")
                await state.workload.create_topic()
                yield state
                nursery.cancel_scope.cancel()
        finally:
            nodes.close()
            net.shut()


async def _work(
    state: RunState, schedule: Schedule, watch: Watch, operator: Operator, *, is_liveness: bool
) -> bool:
    """Faults, heal, drain. False: the last reader did not read everything."""
    workload = state.workload
    async with trio.open_nursery() as helpers:
        helpers.start_soon(watch.run)
        helpers.start_soon(operator.run)
        async with trio.open_nursery() as readers:
            readers.start_soon(workload.consume)
            async with trio.open_nursery() as producers:
                producers.start_soon(workload.produce)
                await play(state, schedule, watch)
                await heal(state)
                if is_liveness:
                    await _demand_progress(state, operator)
                await settle_changes(state)
                await _demand_recovery(state, operator)
                await trio.sleep_until(state.began + schedule.seconds)
                workload.stop()
            is_whole = await _drain(state, readers)
        await _demand_agreement(state)
        helpers.cancel_scope.cancel()
    return is_whole


async def _demand_progress(state: RunState, operator: Operator) -> None:
    """Complain if the cluster makes no progress while one node of three or more stays dead: a
    quorum of each group is up."""
    await settle_changes(state)
    if len(state.members) < 3:
        # With one of one or two nodes dead there is no majority.
        return
    are_settled = partial(are_groups_settled, state)
    if not await wait_found(are_settled, timeout=LIVENESS_SECONDS_MAX, look_seconds=0.2):
        # A group still counts on a node that is gone: with another one dead it may have no
        # majority. `_demand_recovery` complains if that lasts.
        return
    healthy = sorted(state.members - state.broken.keys())
    # A damaged node must be the dead one: two nodes missing would leave no majority of three.
    dead = next(iter(state.broken), state.random.choice(healthy))
    operator.off.add(dead)
    state.kill(dead)
    state.note(dead, "stays dead")
    goal = state.workload.acked + LIVENESS_MESSAGES
    began = trio.current_time()
    is_reached = await wait_true(lambda: state.workload.acked >= goal, timeout=LIVENESS_SECONDS_MAX)
    if not is_reached:
        text = f"with only node {dead} dead, {LIVENESS_MESSAGES} messages were not acknowledged"
        state.complain("V1", f"{text} within {LIVENESS_SECONDS_MAX:g} s")
    state.counts["longest to progress without one node, ms"] = int(
        (trio.current_time() - began) * 1000
    )
    operator.off.clear()


async def _demand_recovery(state: RunState, operator: Operator) -> None:
    """Complain unless all members are up, agree on leaders, and hold what the leaders held when
    asked.

    Clients go on writing, so that on a slow machine a follower never holds the newest record. So
    the goal is the leaders' last records at one moment, and a new goal is set only after a change
    of leaders or members.
    """
    goals: dict[int, Goal] = {}

    async def is_recovered() -> bool:
        nonlocal goals
        if state.broken or state.changing.locked():
            goals = {}
            return False
        statuses = await state.nodes.statuses()
        if not goals or are_outdated(statuses, goals):
            goals = goals_of(statuses, state.members)
            return False
        return are_reached(statuses, goals)

    began = trio.current_time()
    if not await wait_found(is_recovered, timeout=RECOVERY_SECONDS_MAX, look_seconds=0.2):
        goal = f"goals {goals}" if goals else "no goal: members are down, or differ on who leads"
        text = f"no recovery within {RECOVERY_SECONDS_MAX:g} s: {goal}; {await _situation(state)}"
        state.complain("V1", text)
        for text in operator.complaints():
            state.complain("V3", text)
    else:
        state.note(0, "recovered")
    state.counts["longest to recover, ms"] = int((trio.current_time() - began) * 1000)


async def _situation(state: RunState) -> str:
    """Facts for the outcome: the logs are gone with the run."""
    statuses = await state.nodes.statuses()
    groups = {
        node: [
            f"{each['group']}: {each['role']} in term {each['term']} at {each['last_index']}, "
            f"voters {each['voters']}, outgoing {each['voters_outgoing']}"
            for each in status["groups"]
        ]
        for node, status in sorted(statuses.items())
    }
    running = [node for node in state.everyone if state.nodes.is_running(node)]
    words = {node: state.nodes.last_words(node)[-200:] for node in state.everyone}
    latest = [f"{each.at_ms} {each.node} {each.what}" for each in state.happenings[-LATEST:]]
    return (
        f"running {running}, damaged {sorted(state.broken)}, a change is under way: "
        f"{state.changing.locked()}, groups {groups}, last words {words}, last events {latest}"
    )


async def _drain(state: RunState, readers: trio.Nursery) -> bool:
    """Wait until the last reader and the groups have read every message that was sent.

    False: the last reader did not read everything.
    """
    is_whole, workload = False, state.workload
    with trio.move_on_after(DRAIN_SECONDS_MAX) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_if_quiet, workload, scope)
            try:
                await workload.set_ends()
                await workload.read_all()
                is_whole = True
                await wait_true(lambda: workload.is_read, timeout=DRAIN_SECONDS_MAX)
            except* RaftmqError as errors:
                state.complain("V3", f"the last reader failed: {errors.exceptions[0]}")
            nursery.cancel_scope.cancel()
    if not is_whole:
        bounds = f"{DRAIN_QUIET_SECONDS:g} s without a message, or {DRAIN_SECONDS_MAX:g} s"
        state.complain("V3", f"reading everything failed, or took {bounds}")
    elif not workload.is_read:
        state.complain("V3", "the consumer groups did not get to the end")
    readers.cancel_scope.cancel()
    return is_whole


async def _end_if_quiet(workload: Work, scope: trio.CancelScope) -> None:
    before = -1
    while before != (handed := workload.polled + workload.read_back):
        before = handed
        await trio.sleep(DRAIN_QUIET_SECONDS)
    scope.cancel()


async def _demand_agreement(state: RunState) -> None:
    """Complain unless all replicas reach the same state."""
    states: dict[int, dict[int, tuple[int, int]]] = {}

    async def agree() -> bool:
        statuses = await state.nodes.statuses()
        states.clear()
        for status in statuses.values():
            for group in status["groups"]:
                if status["id"] in map(node_of, group["voters"]):
                    replica = (group["applied"], group["digest"])
                    states.setdefault(group["group"], {})[status["id"]] = replica
        is_all = state.members <= statuses.keys()
        # One replica of a group is the reference and no comparison.
        state.compared[AGREEMENT] = sum(len(each) - 1 for each in states.values())
        return is_all and all(len(set(each.values())) == 1 for each in states.values())

    if not await wait_found(agree, timeout=RECOVERY_SECONDS_MAX / 2, look_seconds=0.2):
        apart = {group: each for group, each in states.items() if len(set(each.values())) > 1}
        state.complain(
            "V3", f"replicas do not get to one state: {apart}; {await _situation(state)}"
        )


def _outcome(
    state: RunState,
    schedule: Schedule,
    watch: Watch,
    history: History,
    workload: str,
    *,
    is_whole: bool,
) -> Outcome:
    reports = _judge(history, workload, schedule.seed, is_whole=is_whole)
    violations = [*state.violations, *_violations(reports, history)]
    undecided = [report.reason for report in reports if report.verdict is Verdict.UNKNOWN]
    for report in reports:
        state.compared[report.checker] += report.compared
    vacuous = _vacuous(state, schedule) or "; ".join(undecided)
    verdict = worst(report.verdict for report in reports)
    if violations:
        verdict = Verdict.INVALID
    elif vacuous:
        verdict = Verdict.UNKNOWN
    return Outcome(
        world=World.REAL,
        schedule=schedule,
        verdict=verdict,
        violations=tuple(sorted(violations, key=lambda violation: violation.at_ms)),
        trace_hash=_trace_hash(state, history),
        counts=_counts(state, watch, reports),
        coverage=dict(state.coverage),
        simulated_seconds=state.now_ms / 1000,
        vacuous=vacuous,
        history=history,
        timeline=tuple(state.happenings),
        compared=dict(sorted(state.compared.items())),
        struck=dict(sorted(state.struck.items())),
    )


def _judge(history: History, workload: str, seed: int, *, is_whole: bool) -> list[Report]:
    if workload == "pop":
        reports = judge_pop(
            history,
            groups=groups_of(seed, FEW),
            clock_ms_max=None,
            is_drained=is_whole,
            handing_ms_max=HANDING_MS_MAX,
        )
        return reports + judge_withheld(history, clock_ms_max=None, is_drained=is_whole)
    if workload == "register":
        return [check_linearizability(history, limit=Limit(seconds=JUDGE_SECONDS_MAX))]
    reports = [check_total_queue(history, is_drained=is_whole)]
    if workload == "log":
        rules = LogRules(is_drained=is_whole, is_send_contiguous=True)
        reports.append(check_log(history, rules))
    return reports


def _violations(reports: list[Report], history: History) -> list[Violation]:
    """The anomalies of invalid reports, each at the time of its first operation."""
    found = []
    start = int(history.time[0]) if len(history) else 0
    for report in reports:
        if report.verdict is not Verdict.INVALID:
            continue
        for anomaly in report.anomalies:
            shown = anomaly.operations[:1]
            rows = np.isin(history.operation, shown).nonzero()[0]
            at_ms = (int(history.time[rows[0]]) - start) // 1_000_000 if len(rows) else 0
            found.append(Violation(anomaly.name, at_ms, f"{report.checker}: {anomaly.fact}"))
    return found


def _vacuous(state: RunState, schedule: Schedule) -> str:
    if state.workload.acked < ACKED_MIN:
        return f"only {counted(state.workload.acked, 'message')} acknowledged"
    if not state.workload.polled:
        return "no consumer group read anything"
    if schedule.events and not state.struck:
        return f"no fault could be made: {dict(state.counts)}"
    never = [name for name, count in state.compared.items() if not count]
    return f"nothing was compared by: {', '.join(never)}" if never else ""


def _counts(state: RunState, watch: Watch, reports: list[Report]) -> dict[str, int]:
    counts = {
        **watch.gauges.most,
        "acked": state.workload.acked,
        "polled": state.workload.polled,
        "elections": watch.elections,
        "frames": state.network.frames,
        "broken connections": state.network.broken,
        "positions that went back": state.workload.went_back,
    }
    for report in reports:
        counts |= {f"{report.checker}: {name}": count for name, count in report.counts.items()}
    return counts | dict(state.counts) | {f"fault {n}": c for n, c in sorted(state.struck.items())}


def _trace_hash(state: RunState, history: History) -> str:
    trace = hashlib.blake2b(digest_size=16)
    for happening in state.happenings:
        trace.update(repr(happening).encode())
    for column in (history.operation, history.type, history.offset):
        trace.update(column.tobytes())
    return trace.hexdigest()
