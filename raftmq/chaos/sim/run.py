"""One run: a schedule is played on a cluster with clients, healed, drained and judged.

    outcome = run(Schedule(...))                     # or with workload="register", is_liveness=True
    print(outcome)

Parts that are judged, and their judges:

| part | by |
|---|---|
| sends and polls | `check_total_queue`, `check_log` |
| commits, and reads of what was committed | `check_linearizability` |
| owners of queues, and commits of owners | `MembersWorkload` |
| pops and what is settled | `check_pop`, from the history; `PopLog`, from the committed log |
| delayed messages and transactions | `check_withheld`, from the history; `PopLog` |
| logs, time line, progress of every partition group | `check_evidence` |
| that each call is answered by its timeout | `Deadlines` |
| that it comes to rest in time | `drain` |
| that its time goes on | `TimeStandsStill` of the simulated clock |
| that retention by age drops nothing that is young, whatever one clock shows | `Watch.trimmed` |
| that leaders let time pass in a silence | `silence` |
| that a check-back is asked, whatever other groups do | `check_backs` |
| that users get what the rules allow, and no more | `rights`, `intruders` |
| that no more messages are in flight than quotas allow | `in_flight` |
| that nodes count what open connections hold, and no more | `loads` |
| that answers to POPs have only messages that their consumers hold | `PopAnswers` |
| that the directory is whole soon after the last restart | `directories` |
| that calls succeed while a majority is well, and soon after the heal | `availability` |
| asserts and exceptions in nodes and clients | they end the node or client, and are violations |

Invariants:
- Equal arguments give equal outcomes, `trace_hash` included.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Literal

import msgspec
import numpy as np
import trio

from raftmq.broker.settings import Balance, Log, Raft
from raftmq.chaos.faults.catalogue import FAULTS, World
from raftmq.chaos.faults.schedule import Schedule
from raftmq.chaos.outcome import Outcome, Violation
from raftmq.chaos.sim.checks.audit_log import AuditLog
from raftmq.chaos.sim.checks.availability import Absences, Availability
from raftmq.chaos.sim.checks.check_backs import CheckBacks
from raftmq.chaos.sim.checks.evidence import gather, judge_servers, vacuous_everywhere
from raftmq.chaos.sim.checks.guests import Guests
from raftmq.chaos.sim.checks.in_flight import InFlight
from raftmq.chaos.sim.checks.intruders import Intruders
from raftmq.chaos.sim.checks.leaving import Leaving
from raftmq.chaos.sim.checks.pop_evidence import PopAnswers, PopEvidence
from raftmq.chaos.sim.checks.rights import Rights
from raftmq.chaos.sim.checks.silence import keep_silence
from raftmq.chaos.sim.checks.twins import Twins
from raftmq.chaos.sim.checks.watch import Watch
from raftmq.chaos.sim.clients import CALL_SECONDS, Clients
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.directories import WHOLE, has_directory, simulated_time, wait_whole
from raftmq.chaos.sim.drain import Workload, drain
from raftmq.chaos.sim.faults.effects import TOLD
from raftmq.chaos.sim.faults.hostile import DESCRIPTORS, LIMITS
from raftmq.chaos.sim.faults.nemesis import Nemesis
from raftmq.chaos.sim.faults.taps import Taps
from raftmq.chaos.sim.loads import Loads
from raftmq.chaos.sim.observed import FLOW_FAILPOINTS, MEMBER_FAILPOINTS, POP_FAILPOINTS
from raftmq.chaos.sim.run_state import RunState
from raftmq.chaos.sim.small_bounds import small_bounds
from raftmq.chaos.sim.workloads.admin import AdminWorkload
from raftmq.chaos.sim.workloads.flows import FlowsWorkload
from raftmq.chaos.sim.workloads.log import LogWorkload
from raftmq.chaos.sim.workloads.members import MembersWorkload
from raftmq.chaos.sim.workloads.pop import CALM_CLOCK_MS, CALM_LATE_MS, PopWorkload
from raftmq.chaos.sim.workloads.registers import RegisterWorkload
from raftmq.chaos.tally import noted
from raftmq.chaos.workloads.deadlines import Deadlines
from raftmq.chaos.workloads.popping import judge_pop
from raftmq.chaos.workloads.withholding import judge_withheld
from raftmq.chaos.world.agenda import Agenda, TimeStandsStill
from raftmq.chaos.world.agenda import run as run_world
from raftmq.chaos.world.process import Process
from raftmq.checkers import (
    Limit,
    LogRules,
    Report,
    Verdict,
    check_linearizability,
    check_log,
    check_total_queue,
)
from raftmq.checkers.history import History, Recorder
from raftmq.words import counted

WorkloadName = Literal["log", "queue", "register", "pop", "members", "flows", "admin"]
WORKLOADS: Mapping[WorkloadName, type[LogWorkload] | type[RegisterWorkload]] = {
    "log": LogWorkload,
    "queue": LogWorkload,
    "register": RegisterWorkload,
    "pop": PopWorkload,
    "members": MembersWorkload,
    "flows": FlowsWorkload,
    "admin": AdminWorkload,
}
"""Workloads by name; `queue` runs the clients of `log` and is judged as one bag of messages."""
POPPING: frozenset[WorkloadName] = frozenset({"pop", "flows"})
"""Workloads whose clients pop: the ledger replays their committed logs."""
OWN_FAILPOINTS: Mapping[WorkloadName, tuple[str, ...]] = {
    "pop": POP_FAILPOINTS,
    "members": MEMBER_FAILPOINTS,
    "flows": FLOW_FAILPOINTS,
}
"""Failpoints of requests that only these clients make."""

PACES = (Raft(tick_ms=50), Raft())
"""The seed chooses one: twice as fast as a node's default, or the default, at which timeouts of
clients and elections coincide as they do for users."""
RETENTION_MS = 3_600_000
"""Longer than any run, and shorter than the jumps of clocks: each dropped record was too young."""
RETENTION_EVERY = 10
"""One in this many runs with `--workload pop` keeps so little that messages are dropped unread."""
LITTLE = {"segment_bytes": 16_384, "retention_bytes": 32_768, "dead_bytes": 16_384}
KEPT_EVERY = 9
"""In one of this many runs of the log or the queue the nodes keep next to nothing, and their topic
says that all of it stays."""
KEPT = {"segment_bytes": 16_384, "retention_ms": 1000}
PARTS_EVERY = 10
"""One in this many runs whose clients pop has a batch in each answer: most leases come in parts."""
BALANCED_EVERY = 4
"""In one of this many runs the cluster replaces nodes that are silent, and evens out leaders."""
LEADERS_MS = 3000
ABSENT_MS = 4000
"""Two of the longest election timeouts: so most faults that silence a node outlast it."""
CACHE_BYTES = 8192
"""With `--workload admin`: small, so that a group that has just been made must read from disk."""
RESERVE_BYTES = 1 << 20
"""Reserve of each disk: some tens of seconds of the clients' traffic."""

SPREAD_MS_MAX = 3000
"""Clocks that differ by more than this are not used to judge leases of one to four seconds."""

ROT = frozenset({"bit-flip", "bad-sector", "unreadable-sector", "misdirected-write"})
"""Faults that may strike data that only searches by key read: a client searches then."""

ACKED_MIN = 20
"""A run with fewer successful operations is vacuous."""


def run(
    schedule: Schedule,
    *,
    workload: WorkloadName = "log",
    is_liveness: bool = False,
    is_secure: bool = False,
    nodes: int = 3,
) -> Outcome:
    """Play a schedule and judge the run.

    Args:
        schedule: the faults, the seed of all other choices, and the duration.
        workload: what clients do meanwhile.
        is_liveness: heal a quorum only; see `drain`.
        is_secure: nodes know who is at the other end, and clients are a user with rules.
        nodes: number of founding nodes; schedules name them from 1.
    """
    agenda = Agenda()
    play = _Run(
        schedule,
        workload,
        is_liveness=is_liveness,
        is_secure=is_secure,
        nodes=nodes,
        agenda=agenda,
    )
    try:
        with ExitStack() as stack:
            stack.enter_context(play.deadlines.watched())
            stack.enter_context(small_bounds(schedule.seed))
            if has_directory(schedule.seed):
                stack.enter_context(simulated_time(schedule.seed))
            run_world(play.main, seed=schedule.seed, agenda=agenda)
    except TimeStandsStill as finding:
        return noted(play.stood_still(finding))
    return noted(play.intruded() or play.outcome())


class _Run:
    """The parts of one run, and their results."""

    def __init__(
        self,
        schedule: Schedule,
        workload: WorkloadName,
        *,
        is_liveness: bool,
        is_secure: bool,
        nodes: int,
        agenda: Agenda,
    ) -> None:
        self._is_secure = is_secure
        self._schedule = schedule
        self._workload_name = workload
        self._is_liveness = is_liveness
        self._nodes = nodes
        self._agenda = agenda
        self._judged_by_clocks = 0
        self._whole = 0
        self._popped: PopEvidence | None = None
        self._asked: CheckBacks | None = None
        self._recorder = Recorder(lambda: int(agenda.now * 1e9))
        self.deadlines = Deadlines(
            now=lambda: agenda.now, seconds=CALL_SECONDS, stops=_stops_of_caller
        )

    async def main(self) -> None:
        """Play the schedule, heal, and drain."""
        schedule = self._schedule
        async with trio.open_nursery() as nursery:
            cluster = Cluster(nursery, size=self._nodes, seed=schedule.seed, agenda=self._agenda)
            cluster.network.is_under_tls = self._is_secure
            cluster.raft = PACES[schedule.seed % len(PACES)]
            faults = {event.fault for event in schedule.events}
            taps = Taps(cluster.network, faults)
            is_little = self._workload_name == "pop" and schedule.seed % RETENTION_EVERY == 9
            cluster.log = self._log_settings(cluster.log, is_little=is_little)
            # The twins of machines that pop are those of `PopEvidence`.
            is_popping = self._workload_name in POPPING
            self._twins = Twins(cluster, lambda group: not (is_popping and group.number))
            if is_popping:
                self._popped = PopEvidence(cluster, retains_little=is_little)
            self._pop_answers = PopAnswers(cluster)
            self._limit(cluster)
            await cluster.found()
            self._watch = watch = Watch(cluster, is_kept_by_topic=self._is_kept)
            self._clients = clients = Clients(cluster, nursery, seed=schedule.seed)
            self._leaving, self._in_flight = Leaving(cluster), InFlight(cluster, clients)
            self._loads, self._audit_log = Loads(cluster), AuditLog(cluster, clients)
            self._state = state = RunState(
                cluster, watch, clients, nursery, taps=taps, seed=schedule.seed
            )
            self._workload: Workload = WORKLOADS[self._workload_name](clients, self._recorder)
            state.own_failpoints = OWN_FAILPOINTS.get(self._workload_name, ())
            clients.has_others = self._is_secure and any(FAULTS[f].needs_users for f in faults)
            self._rights = Rights(state)
            self._rights.begin()
            await clients.admit()
            await self._prepare()
            watch.begin()
            state.begin()
            self._workload.start()
            if faults & ROT and isinstance(self._workload, LogWorkload):
                clients.start("looker", self._workload.look)
            self._availability = Availability(state)
            self._absences = Absences(cluster, self._availability)
            if isinstance(self._workload, PopWorkload):
                withholding = self._workload.withholding
                self._asked = CheckBacks(state, withholding, self._availability)
                self._asked.begin()
            self._intruders = Intruders(state, schedule.seed)
            self._intruders.begin()
            if clients.has_others:
                Guests(state, schedule.seed).begin()
            nemesis = Nemesis(state, schedule, self._availability)
            nemesis.begin()
            self._availability.begin()
            await trio.sleep(schedule.heal_ms / 1000)
            self._before_heal = self._workload.progress
            nemesis.heal()
            if self._workload_name == "pop":
                await keep_silence(state, seed=schedule.seed)
                # Clients stood still: the time to service counts from the end of the silence.
                self._availability.heal()
            rest = self._availability.end
            await drain(state, self._workload, is_liveness=self._is_liveness, at_rest=rest)
            # A drain that was cut short, as half of the nodes broke, has not called it.
            rest()
            if cluster.has_directory and not self._is_liveness:
                self._whole = await wait_whole(state)
            self._rights.end()
            watch.end()
            self._elapsed = watch.now_ms / 1000
            state.end()
            self._look_at_the_end(state)
            nursery.cancel_scope.cancel()

    def _look_at_the_end(self, state: RunState) -> None:
        """Look at the nodes before they end."""
        self._loads.end()
        self._twins.take_states()
        self._audit_log.take()
        if self._popped is not None:
            self._popped.look(state)

    @property
    def _is_kept(self) -> bool:
        """Whether the nodes keep next to nothing, and the topic all of it."""
        is_log = self._workload_name in ("log", "queue")
        return is_log and self._schedule.seed % KEPT_EVERY == 4

    async def _prepare(self) -> None:
        await self._workload.prepare()
        if self._is_kept:
            assert isinstance(self._workload, LogWorkload)
            await self._workload.keep_all()

    def _limit(self, cluster: Cluster) -> None:
        """Set the limits of the nodes in this run, and what they do by themselves."""
        cluster.has_directory = has_directory(self._schedule.seed)
        if self._schedule.seed % BALANCED_EVERY == 3:
            cluster.balance = Balance(leaders_ms=LEADERS_MS, absent_ms=ABSENT_MS)
        if any(event.fault == "strangers" for event in self._schedule.events):
            cluster.limits, cluster.descriptors_max = LIMITS, DESCRIPTORS
        if self._workload_name in POPPING and self._schedule.seed % PARTS_EVERY == 5:
            cluster.limits = msgspec.structs.replace(cluster.limits, fetch_bytes_max=1)

    def _log_settings(self, log: Log, *, is_little: bool) -> Log:
        """The settings of the nodes' logs in this run."""
        changes: dict[str, Any] = {"reserve_bytes": RESERVE_BYTES, "retention_ms": RETENTION_MS}
        if is_little:
            changes |= LITTLE
        if self._is_kept:
            changes |= KEPT
        if self._workload_name == "admin":
            # Newcomers wait for each message, so retention is off: it may believe two wrong clocks
            # of three.
            changes |= {"cache_bytes": CACHE_BYTES, "retention_ms": 0}
        return msgspec.structs.replace(log, **changes)

    def stood_still(self, finding: TimeStandsStill) -> Outcome:
        """The outcome of a run whose time stands still: no other check judges the run."""
        at_ms = int(self._agenda.now * 1000)
        return self._wrecked(Violation("time-stands-still", at_ms, str(finding)))

    def _wrecked(self, *violations: Violation) -> Outcome:
        """The outcome of a run about which the other checks can say nothing."""
        return Outcome(
            World.SIM,
            self._schedule,
            Verdict.INVALID,
            violations,
            self._agenda.trace_hash,
            simulated_seconds=self._agenda.now,
            history=self._recorder.history(),
        )

    def intruded(self) -> Outcome | None:
        """The outcome of a run in which an intruder got something: no other check knows what it
        did. None: no intruder did."""
        found = self._intruders.violations
        return self._wrecked(*found) if found else None

    def outcome(self) -> Outcome:
        """Judge the run."""
        state, watch = self._state, self._watch
        history = self._recorder.history()
        violations = [*state.violations, *self._availability.judge(history, self._workload.served)]
        at_ms = int(self._elapsed * 1000)
        violations += self._noticed(at_ms)
        violations += self._rights.violations + self._in_flight.violations
        violations += [Violation("client-bug", at_ms, text) for text in self._clients.failures]
        reports = self._judge_clients(history)
        violations += [v for report in reports for v in _violations(report, at_ms)]
        compared: Counter[str] = Counter()
        for report in reports:
            compared[report.checker] += report.compared
        if self._popped is not None:
            found = self._popped.judge(history, is_drained=self._workload.is_drained)
            violations += [Violation(one.number, at_ms, str(one)) for one in found]
            compared.update(self._popped.compared)
            state.counts["lost to retention"] = self._popped.lost
        violations += [Violation(x.number, at_ms, str(x)) for x in self._twins.differences()]
        compared.update(self._twins.compared)
        violations += [Violation("answered-late", at_ms, text) for text in self.deadlines.late]
        if self._asked is not None:
            self._asked.end()
            violations += self._asked.violations
            compared.update(self._asked.compared)
        if self._judged_by_clocks:
            compared["leases by the clock"] = self._judged_by_clocks
        compared["answers by their deadlines"] = self.deadlines.compared.total()
        for observer in (
            self._intruders, self._rights, self._loads, self._in_flight, self._pop_answers,
            self._availability, self._leaving,
        ):  # fmt: skip
            compared.update(observer.compared)
        # Each comparison so far must occur in every run. A comparison of servers may be empty in
        # some runs (no sync failed), and must occur in a campaign.
        vacuous = self._why_vacuous(compared)
        violations += self._judge_acts(history, at_ms)
        # Not before: a short run with many faults may have no act that was acknowledged.
        compared.update(self._audit_log.compared)
        compared.update(self._absences.compared + Counter({WHOLE: self._whole}))
        of_servers = judge_servers(gather(state, watch))
        for _, report in of_servers:
            compared[report.checker] += report.compared
        state.counts["acknowledged, looked for in later leaders"] = state.handed.lookups
        for group, report in of_servers:
            violations += _violations(report, at_ms, f"group {group}: ")
        state.counts.update(f"vacuous {number}" for number in vacuous_everywhere(of_servers))
        unknown = [report.reason for report in reports if report.verdict is Verdict.UNKNOWN]
        if violations:
            verdict = Verdict.INVALID
        elif vacuous or unknown:
            verdict = Verdict.UNKNOWN
        else:
            verdict = Verdict.VALID
        return Outcome(
            World.SIM,
            self._schedule,
            verdict,
            tuple(violations),
            self._agenda.trace_hash,
            self._counts(history),
            dict(watch.coverage),
            self._elapsed,
            vacuous or "; ".join(unknown),
            history,
            tuple(watch.timeline),
            compared=dict(sorted(compared.items())),
            struck=dict(sorted(state.struck.items())),
        )

    def _noticed(self, at_ms: int) -> list[Violation]:
        """Violations by nodes, and on their network, that were noticed during the run."""
        watch, network = self._watch, self._state.cluster.network
        found = [
            Violation("Q1", trimmed_ms, f"group {group}: retention dropped records of this run")
            for group, trimmed_ms in sorted(watch.trimmed.items())
        ]
        found += [Violation("R4", watch.now_ms, text) for text in self._state.handed.lacking]
        found += self._pop_answers.violations
        found += [Violation("member-id", watch.now_ms, text) for text in watch.reused]
        found += [Violation("V10", watch.now_ms, text) for text in self._leaving.early]
        found += [Violation("V12", watch.now_ms, text) for text in self._leaving.astray]
        found += [Violation("V13", watch.now_ms, text) for text in self._absences.wrong]
        found += self._loads.violations
        missing = list(watch.missing.values())[:3]
        found += [Violation("missing-file", watch.now_ms, text) for text in missing]
        for host, count in network.sought.items():
            text = f"{counted(count, 'attempt')} to connect to {host}, which is gone"
            found.append(Violation("B3", at_ms, text))
        return found

    def _judge_acts(self, history: History, at_ms: int) -> list[Violation]:
        """Differences between the audit log and what administrators were told."""
        if not isinstance(self._workload, AdminWorkload):
            return []
        return [Violation("audit-log", at_ms, text) for text in self._audit_log.judge(history)]

    def _judge_clients(self, history: History) -> list[Report]:
        reports = []
        messages = history.is_function("send", "poll")
        registers = history.is_function("read", "write")
        # An undrained queue is reported as such: its missing messages may still be there.
        is_drained = self._workload.is_drained
        # Leases are judged by the clock under every fault, as sharply as the clocks were right.
        # Answers that the network held up weaken the rules.
        clock_ms_max = self._clock_ms_max()
        if isinstance(self._workload, FlowsWorkload):
            return self._workload.judge(history, clock_ms_max=clock_ms_max)
        if isinstance(self._workload, AdminWorkload):
            return self._workload.judge(history)
        if isinstance(self._workload, PopWorkload):
            reports += judge_pop(
                history,
                groups=self._workload.groups,
                clock_ms_max=None
                if clock_ms_max is None
                else clock_ms_max + self._workload.late_ms,
                late_ms_max=None if self._schedule.events else CALM_LATE_MS,
                is_drained=is_drained,
            )
            if clock_ms_max is not None:
                self._judged_by_clocks = sum(report.compared for report in reports)
            reports += judge_withheld(
                history,
                clock_ms_max=clock_ms_max,
                is_drained=is_drained,
                retains_all=not self._state.cluster.log.retention_bytes,
            )
        elif messages.any():
            part = history.select(messages)
            reports.append(check_total_queue(part, is_drained=is_drained))
            if self._workload_name == "log":
                reports.append(check_log(part, LogRules(is_drained=is_drained)))
        if registers.any():
            part = history.select(np.asarray(registers))
            reports.append(check_linearizability(part, limit=Limit(seconds=20.0)))
        return reports

    def _clock_ms_max(self) -> int | None:
        """Largest difference between times of clients and of logs; None: no check goes by times.

        A log's time lies between the time of the clock that is furthest behind and the latest time
        of the clock that was furthest ahead. While the log's time is ahead of its leader's clock,
        it advances more slowly, and no timed event ends early.
        """
        cluster = self._state.cluster
        clocks = [machine.clock for machine in cluster.machines.values()]
        ahead = max(clock.ahead_ms_max for clock in clocks)
        spread = round(ahead + max(clock.behind_ms_max for clock in clocks))
        # Retention by size fences messages in a consumer's hands before their leases end.
        if spread > SPREAD_MS_MAX or cluster.log.retention_bytes:
            return None
        if self._agenda.effects[TOLD]:
            self._state.counts["judged by clocks that were wrong"] = 1
        return CALM_CLOCK_MS + spread

    def _why_vacuous(self, compared: Mapping[str, int]) -> str:
        if self._before_heal < ACKED_MIN:
            return f"before the heal only {counted(self._before_heal, 'operation')} succeeded"
        never = [name for name, count in compared.items() if not count]
        return f"nothing was compared by: {', '.join(never)}" if never else ""

    def _counts(self, history: History) -> dict[str, int]:
        counts: Counter[str] = Counter(self._workload.counts)
        counts.update(self._state.counts)
        counts.update(self._state.struck)
        counts["elections"] = self._watch.elections
        counts["operations"] = history.operation_count
        counts["bytes on the network"] = self._state.cluster.network.bytes_sent
        counts["acked before the heal"] = self._before_heal
        return dict(sorted(counts.items()))


def _stops_of_caller() -> int:
    """How often the calling process has gone on after a pause. Pauses themselves are not counted: a
    call may begin in the moment in which its process stops."""
    process = Process.current()
    return process.thaws if process is not None else 0


def _violations(report: Report, at_ms: int, where: str = "") -> list[Violation]:
    if report.verdict is not Verdict.INVALID:
        return []
    tolerated = {"duplicated", *report.tolerated}
    return [
        Violation(anomaly.name, at_ms, f"{where}{anomaly.fact}")
        for anomaly in report.anomalies
        if anomaly.name not in tolerated
    ]
