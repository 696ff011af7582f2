"""The subject of a page: one run of a world, or one history, with everything that explains it.

A run comes with its outcome; a history alone (of any system) may come with its verdicts. The
history of a run, and a history without verdicts, is judged here, so that each anomaly has its
minimal sub-history. A violation of a run stays a violation, whatever the checkers find here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.chaos.outcome import Outcome
from raftmq.checkers import ANOMALIES, INVARIANTS, Anomaly, Limit, Report, Verdict, judge, worst
from raftmq.checkers.history import History

JUDGE_SECONDS_MAX = 20.0
"""Limit of the search for one page; a run has been judged before, without this limit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise, as a page shows it."""

    name: str
    meaning: str
    """Text of the dictionary of anomalies or the list of invariants; empty if neither has one."""
    fact: str
    at_ms: int
    """Milliseconds from the start of the run; -1: not known."""
    anomaly: Anomaly | None = None
    """The anomaly with its minimal sub-history; None: no checker of histories found it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One page's subject."""

    title: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    reports: tuple[Report, ...]
    outcome: Outcome | None = None
    history: History | None = None
    reason: str = ""
    """Why the verdict is unknown."""
    replay: str = ""
    """A command that repeats the run; empty: the outcome's command, if there is an outcome."""

    @property
    def origin_ns(self) -> int:
        """The time of the history's clock at which the run began, in nanoseconds.

        A recorder's clock may have begun long before the run, so the time counts back from the last
        row by the length of the run. Without a run, time begins with the first operation.
        """
        if self.history is None or not len(self.history):
            return 0
        if self.outcome is None:
            return int(self.history.time.min())
        seconds = self.outcome.simulated_seconds
        return max(int(self.history.time.max()) - int(seconds * 1e9), 0)

    @property
    def end_ms(self) -> int:
        """End of the drawing, in milliseconds; at least 1."""
        ends = [1]
        if self.outcome is not None:
            ends.append(int(self.outcome.simulated_seconds * 1000))
            ends += [happening.at_ms for happening in self.outcome.timeline[-1:]]
        if self.history is not None and len(self.history):
            ends.append(int((int(self.history.time.max()) - self.origin_ns) / 1e6) + 1)
        return max(ends)


def meaning(name: str) -> str:
    """The meaning of a violation's name; empty if no list has the name."""
    if name in ANOMALIES:
        return ANOMALIES[name]
    # A name may be followed by its meaning, as in `R5 state machine safety`.
    number = name.split()[0] if name else ""
    if number in INVARIANTS:
        return f"{INVARIANTS[number].name}: {INVARIANTS[number].meaning}."
    return ""


def of_outcome(outcome: Outcome) -> Case:
    """The case of a run of a world."""
    reports = _judged(outcome.history)
    title = f"{outcome.world.value} world, seed {outcome.schedule.seed}"
    names = {violation.name for violation in outcome.violations}
    anomalies = [anomaly for report in reports for anomaly in report.anomalies]
    explained = {anomaly.name for anomaly in anomalies if anomaly.name in names}
    findings = [
        Finding(violation.name, meaning(violation.name), violation.text, violation.at_ms)
        for violation in outcome.violations
        if violation.name not in explained
    ]
    history = outcome.history
    if history is not None:
        case = Case(title, outcome.verdict, (), (), outcome, history)
        findings += [
            Finding(
                anomaly.name, meaning(anomaly.name), anomaly.fact,
                _at_ms(history, anomaly, case.origin_ns), anomaly,
            )
            for anomaly in anomalies
            if anomaly.name in explained
        ]  # fmt: skip
    findings.sort(key=lambda finding: finding.at_ms)
    reason = f"the run was vacuous: {outcome.vacuous}" if outcome.vacuous else ""
    return Case(
        title, outcome.verdict, tuple(findings), tuple(reports), outcome, outcome.history, reason
    )


def of_history(
    history: History,
    title: str,
    reports: Sequence[Report] | None = None,
    outcome: Outcome | None = None,
) -> Case:
    """The case of a history of any system; the history is judged here unless `reports` are given.

    An outcome shows the faults of the run; its verdict is ignored.
    """
    found = _judged(history) if reports is None else list(reports)
    verdict = worst(report.verdict for report in found)
    origin_ns = Case(title, verdict, (), (), outcome, history).origin_ns
    findings = tuple(
        Finding(
            anomaly.name, meaning(anomaly.name), anomaly.fact,
            _at_ms(history, anomaly, origin_ns), anomaly,
        )
        for report in found
        if report.verdict is Verdict.INVALID
        for anomaly in report.anomalies
        if anomaly.name not in report.tolerated
    )  # fmt: skip
    reasons = [f"{report.checker}: {report.reason}" for report in found if report.reason]
    reason = "; ".join(reasons) if verdict is Verdict.UNKNOWN else ""
    return Case(title, verdict, findings, tuple(found), outcome, history, reason)


def _judged(history: History | None) -> list[Report]:
    if history is None:
        return []
    return judge(history, limit=Limit(seconds=JUDGE_SECONDS_MAX))


def _at_ms(history: History, anomaly: Anomaly, origin_ns: int) -> int:
    """Time of the last row of an anomaly's sub-history, in ms; -1 if the anomaly names none."""
    if not anomaly.operations:
        return -1
    import numpy as np

    rows = np.flatnonzero(np.isin(history.operation, anomaly.operations))
    return int((int(history.time[rows[-1]]) - origin_ns) / 1e6)
