"""The data that the page's script draws: one JSON object, made from a case.

All times are milliseconds from the start of the run. Structs that come in large numbers are written
as arrays; `drawing.js` reads the arrays in the order of the fields.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from raftmq.chaos.faults import Schedule
from raftmq.chaos.report.case import Case, Finding
from raftmq.chaos.report.operations import Curve, Sample, Timed, curves, sample, sentence, timed
from raftmq.chaos.report.timeline import Band, Mark, Span, bands, heal_ms, marks, spans
from raftmq.checkers.history import History, RowType
from raftmq.checkers.verdict import minimal_rows, rows_around

CORE_OPERATIONS_MAX = 12
AROUND_OPERATIONS_MAX = 6
"""Most operations around the minimal sub-history that one close-up shows."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One operation of a close-up."""

    operation: int
    process: int
    start_ms: float
    end_ms: float
    outcome: int
    is_core: bool
    """True: part of the minimal sub-history; False: an operation around it."""
    text: str


class CloseUp(msgspec.Struct, frozen=True):
    """The operations that show one finding."""

    name: str
    at_ms: int
    """Milliseconds from the start of the run; -1: not known."""
    steps: list[Step]
    left_out: int
    """Operations of the minimal sub-history that are not drawn."""


class Drawing(msgspec.Struct, frozen=True):
    """All that is drawn."""

    end_ms: int
    heal_ms: int
    """Time of the heal; -1: there were no faults."""
    spans: list[Span]
    bands: list[Band]
    marks: list[Mark]
    sample: Sample | None
    functions: list[str]
    curves: list[Curve]
    close_ups: list[CloseUp]
    """One for each finding, in the order of the findings."""

    def json(self) -> str:
        """The drawing as JSON that is safe inside a script element."""
        text = msgspec.json.encode(self).decode()
        # `</script>` in a value must not end the element.
        return text.replace("<", "\\u003c")


def of_case(case: Case) -> Drawing:
    """Everything that a page draws."""
    outcome, history, end_ms = case.outcome, case.history, case.end_ms
    timeline = outcome.timeline if outcome is not None else ()
    schedule = outcome.schedule if outcome is not None else Schedule(0, 0, ())
    shown, lines, close_ups = None, [], [CloseUp(f.name, f.at_ms, [], 0) for f in case.findings]
    if history is not None and len(history):
        of = timed(history)
        anomalous = _operations(case.findings)
        shown = sample(history, of, case.origin_ns, anomalous)
        lines = curves(history, of, case.origin_ns, end_ms)
        close_ups = [_close_up(history, of, case.origin_ns, one) for one in case.findings]
    return Drawing(
        end_ms, heal_ms(timeline, schedule), spans(timeline, end_ms),
        bands(timeline, schedule, end_ms), marks(timeline, schedule), shown,
        list(history.functions) if history is not None else [], lines, close_ups,
    )  # fmt: skip


def _operations(findings: Iterable[Finding]) -> list[int]:
    return sorted(
        {operation for one in findings if one.anomaly for operation in one.anomaly.operations}
    )


def _close_up(history: History, of: Timed, origin_ns: int, finding: Finding) -> CloseUp:
    """The operations of the minimal sub-history, and some around it."""
    anomaly = finding.anomaly
    if anomaly is None:
        return CloseUp(finding.name, finding.at_ms, [], 0)
    rows = minimal_rows(history, anomaly)
    core = np.unique(history.operation[rows])
    around = np.unique(history.operation[rows_around(history, rows)])
    around = np.setdiff1d(around, core)[:AROUND_OPERATIONS_MAX]
    drawn = core[:CORE_OPERATIONS_MAX]
    steps = [
        Step(
            int(one),
            int(of.process[one]),
            round((int(of.start_ns[one]) - origin_ns) / 1e6, 3),
            round((int(of.end_ns[one]) - origin_ns) / 1e6, 3),
            int(of.outcome[one]),
            bool(np.isin(one, core)),
            sentence(history, of, int(one), anomaly.values),
        )
        for one in [*drawn, *around]
    ]
    steps.sort(key=lambda step: (step.start_ms, step.operation))
    return CloseUp(finding.name, finding.at_ms, steps, len(core) - len(drawn))


OUTCOMES = [outcome.name.lower() for outcome in RowType]
"""Names of the outcomes; a number in the data is an index of this list."""
