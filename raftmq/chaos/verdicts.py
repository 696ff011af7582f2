"""The verdict on a test's history: the complaint, the lines for people, the files to keep."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from raftmq.chaos.faults import World
from raftmq.chaos.nemesis import Nemesis
from raftmq.chaos.outcome import Happening, Outcome
from raftmq.chaos.plugin_run import Run
from raftmq.chaos.report import Case, of_history, page
from raftmq.checkers import Report, Verdict, explain, worst
from raftmq.checkers.history import History, write_parquet


@dataclass(frozen=True, slots=True)
class Judged:
    """One test's verdict."""

    complaint: str
    """Why the test fails because of its history; empty: the history is good."""
    lines: tuple[str, ...]
    """The time line, for people."""
    case: Case | None
    """The subject of the page; None: the test has no history to judge."""
    logs: tuple[Callable[[], Mapping[str, str]], ...]

    def keep(self, folder: Path) -> Path:
        """Store the history, its page, and logs; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.case is not None and self.case.history is not None:
            write_parquet(self.case.history, folder / "history.parquet")
            (folder / "report.html").write_text(page(self.case), encoding="utf-8")
        for log in self.logs:
            for name, text in log().items():
                (folder / name).write_text(text)
        return folder


def judged(run: Run, *, title: str, again: str) -> Judged:
    """Judge a test's history.

    Args:
        run: the test.
        title: the test's name, for the page.
        again: the command that repeats the test, for the page.
    """
    timeline = tuple(run.played.timeline) if run.played is not None else ()
    lines = tuple(f"{one.at_ms / 1000:.3f}s {_who(one)}{one.what}" for one in timeline)
    logs = tuple(run.logs)
    if run.journal is None or run.journal.checks == ():
        return Judged("", lines, None, logs)
    history = run.journal.history()
    reports = run.journal.reports()
    complaint = _complaint(history, reports)
    case = of_history(history, title, reports, _outcome(run, history, timeline))
    return Judged(complaint, lines, replace(case, replay=again), logs)


def _outcome(run: Run, history: History, timeline: tuple[Happening, ...]) -> Outcome | None:
    """The faults of the test as an outcome: a page draws faults and nodes of an outcome only."""
    played = run.played.played if run.played is not None else None
    if played is None:
        return None
    # Journal and faults share one clock, and the history may last longer than the schedule.
    seconds = max(int(history.time.max(initial=0)) / 1e9, played.seconds)
    world = World.REAL if isinstance(run.played, Nemesis) else World.SIM
    return Outcome(
        world, played, Verdict.UNKNOWN, simulated_seconds=seconds, history=history,
        timeline=timeline,
    )  # fmt: skip


def _who(happening: Happening) -> str:
    return f"node {happening.node}: " if happening.node else ""


def _complaint(history: History, reports: list[Report]) -> str:
    if not reports:
        return (
            "the history is empty, so it shows nothing: record calls with `history.call`, "
            "or say `history.expect()` if it shall not be judged"
        )
    verdict = worst(report.verdict for report in reports)
    if verdict is Verdict.VALID:
        return ""
    told = [report for report in reports if report.verdict is verdict]
    return "\n\n".join(
        [f"the history is {verdict.value}", *(explain(one, history) for one in told)]
    )
