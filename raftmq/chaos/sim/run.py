"""One run: a schedule is played on a cluster with clients, healed, drained and judged.

    outcome = run(Schedule(...))                     # or with workload="register", is_liveness=True
    print(outcome)

What is judged, and by whom:

| part | by |
|---|---|
| sends and polls | `check_total_queue`, `check_log` |
| commits, and reads of what was committed | `check_linearizability` |
| who owns which queue, and what is committed by whom | `MembersWorkload` |
| pops and what is settled | `check_pop`, from the history; `PopLog`, from the committed log |
| delayed messages and transactions | `check_withheld`, from the history; `PopLog` |
| logs, time line, progress of every partition group | `check_evidence` |
| that it comes to rest in time | `drain` |
| asserts and exceptions in nodes and clients | they end the node or client, and are violations |

Invariants:
- Equal arguments give equal outcomes, `trace_hash` included.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import numpy as np
import trio

from raftmq.chaos.checkers import (
    Limit,
    LogRules,
    Report,
    Verdict,
    check_linearizability,
    check_log,
    check_total_queue,
)
from raftmq.chaos.faults.catalogue import World
from raftmq.chaos.faults.schedule import Schedule
from raftmq.chaos.history import History, Recorder
from raftmq.chaos.outcome import Outcome, Violation
from raftmq.chaos.sim.clients import Clients
from raftmq.chaos.sim.cluster import Cluster
from raftmq.chaos.sim.drain import Workload, drain
from raftmq.chaos.sim.evidence import gather, judge_servers, vacuous_everywhere
from raftmq.chaos.sim.log_workload import LogWorkload
from raftmq.chaos.sim.members_workload import MembersWorkload
from raftmq.chaos.sim.nemesis import Nemesis
from raftmq.chaos.sim.observed import MEMBER_POINTS, POP_POINTS
from raftmq.chaos.sim.pop_evidence import PopEvidence
from raftmq.chaos.sim.pop_workload import CALM_CLOCK_MS, CALM_LATE_MS, PopWorkload
from raftmq.chaos.sim.register_workload import RegisterWorkload
from raftmq.chaos.sim.stage import Stage
from raftmq.chaos.sim.watch import Watch
from raftmq.chaos.workloads.popping import judge_pop
from raftmq.chaos.workloads.withholding import judge_withheld
from raftmq.chaos.world.agenda import Agenda
from raftmq.chaos.world.agenda import run as run_world

WorkloadName = Literal["log", "queue", "register", "pop", "members"]
WORKLOADS: Mapping[WorkloadName, type[LogWorkload] | type[RegisterWorkload]] = {
    "log": LogWorkload,
    "queue": LogWorkload,
    "register": RegisterWorkload,
    "pop": PopWorkload,
    "members": MembersWorkload,
}
"""What clients can do in a run; `queue` does as `log` does and is judged as one bag of messages."""
OWN_POINTS: Mapping[WorkloadName, tuple[str, ...]] = {"pop": POP_POINTS, "members": MEMBER_POINTS}
"""Crash points of requests that only these clients make."""

ACKED_MIN = 20
"""A run with fewer successful operations is vacuous."""


def run(
    schedule: Schedule,
    *,
    workload: WorkloadName = "log",
    is_liveness: bool = False,
    nodes: int = 3,
) -> Outcome:
    """Play a schedule and judge what came of it.

    Args:
        schedule: the faults, the seed of everything else, and how long.
        workload: what clients do meanwhile.
        is_liveness: heal a quorum only; see `drain`.
        nodes: of the cluster; schedules name them from 1.
    """
    agenda = Agenda()
    play = _Run(schedule, workload, is_liveness=is_liveness, nodes=nodes, agenda=agenda)
    run_world(play.main, seed=schedule.seed, agenda=agenda)
    return play.outcome()


class _Run:
    """The parts of one run, and what is left of them."""

    def __init__(
        self,
        schedule: Schedule,
        workload: WorkloadName,
        *,
        is_liveness: bool,
        nodes: int,
        agenda: Agenda,
    ) -> None:
        self._schedule = schedule
        self._workload_name = workload
        self._is_liveness = is_liveness
        self._nodes = nodes
        self._agenda = agenda
        self._recorder = Recorder(lambda: int(agenda.now * 1e9))

    async def main(self) -> None:
        """Play."""
        schedule = self._schedule
        async with trio.open_nursery() as nursery:
            cluster = Cluster(nursery, size=self._nodes, seed=schedule.seed, agenda=self._agenda)
            self._popped = PopEvidence(cluster) if self._workload_name == "pop" else None
            await cluster.found()
            self._watch = watch = Watch(cluster)
            self._clients = clients = Clients(cluster, nursery, seed=schedule.seed)
            self._stage = stage = Stage(cluster, watch, clients, nursery, seed=schedule.seed)
            self._workload: Workload = WORKLOADS[self._workload_name](clients, self._recorder)
            stage.own_points = OWN_POINTS.get(self._workload_name, ())
            await self._workload.prepare()
            watch.begin()
            stage.begin()
            self._workload.start()
            nemesis = Nemesis(stage, schedule)
            nemesis.begin()
            await trio.sleep(schedule.heal_ms / 1000)
            self._before_heal = self._workload.progress
            nemesis.heal()
            await drain(stage, self._workload, is_liveness=self._is_liveness)
            watch.end()
            self._elapsed = watch.now_ms / 1000
            stage.end()
            nursery.cancel_scope.cancel()

    def outcome(self) -> Outcome:
        """Judge."""
        stage, watch = self._stage, self._watch
        history = self._recorder.history()
        violations = list(stage.violations)
        at_ms = int(self._elapsed * 1000)
        violations += [Violation("client-bug", at_ms, text) for text in self._clients.failures]
        reports = [(None, report) for report in self._judge_clients(history)]
        violations += [v for _, report in reports for v in _violations(report, at_ms)]
        if self._popped is not None:
            found = self._popped.judge(stage, history, is_drained=self._workload.is_drained)
            violations += [Violation(one.number, at_ms, str(one)) for one in found]
        of_servers = judge_servers(gather(stage, watch))
        for group, report in of_servers:
            violations += _violations(report, at_ms, f"group {group}: ")
        stage.counts.update(f"vacuous {number}" for number in vacuous_everywhere(of_servers))
        vacuous = self._why_vacuous()
        unknown = [report.reason for _, report in reports if report.verdict is Verdict.UNKNOWN]
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
        )

    def _judge_clients(self, history: History) -> list[Report]:
        reports = []
        messages = history.is_function("send", "poll")
        registers = history.is_function("read", "write")
        # A queue that was not drained was reported as such; what is missing then may be there.
        is_drained = self._workload.is_drained
        if self._workload_name == "pop":
            is_calm = not self._schedule.events
            reports += judge_pop(
                history,
                clock_ms_max=CALM_CLOCK_MS if is_calm else None,
                late_ms_max=CALM_LATE_MS if is_calm else None,
                is_drained=is_drained,
            )
            reports += judge_withheld(
                history,
                clock_ms_max=CALM_CLOCK_MS if is_calm else None,
                is_drained=is_drained,
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

    def _why_vacuous(self) -> str:
        if self._before_heal < ACKED_MIN:
            return f"only {self._before_heal} operations succeeded before the heal"
        return ""

    def _counts(self, history: History) -> dict[str, int]:
        counts: Counter[str] = Counter(self._workload.counts)
        counts.update(self._stage.counts)
        counts["elections"] = self._watch.elections
        counts["operations"] = history.operation_count
        counts["bytes on the network"] = self._stage.cluster.network.bytes_sent
        counts["acked before the heal"] = self._before_heal
        return dict(sorted(counts.items()))


def _violations(report: Report, at_ms: int, where: str = "") -> list[Violation]:
    if report.verdict is not Verdict.INVALID:
        return []
    tolerated = {"duplicated", *report.tolerated}
    return [
        Violation(anomaly.name, at_ms, f"{where}{anomaly.fact}")
        for anomaly in report.anomalies
        if anomaly.name not in tolerated
    ]
