"""Judge histories that are too large for one process.

    for recorded in map(find, paths):
        report = judge(spark, recorded, Rules())
    store(reports, "checked")

`store` writes two files, each whole or not at all, the verdict last:

`violations.parquet`, a row each finding (of each kind at most `Rules.examples_max`):

| column | type | meaning |
|---|---|---|
| history | string | as it was named |
| checker | string | total-queue, log, key-order |
| kind | string | the anomaly's name: `raftmq chaos list anomalies` explains it |
| is_tolerated | bool | it does not make the history invalid |
| row | int64 | number of the history's row that shows it, from 0 |
| queue | string | the row's key, null if it has none |
| process | int64 | who called |
| offset | int64 | null if the answer had none |
| values | list of string | the messages it is about, as JSON |
| operations | list of int64 | the calls that show it |
| fact | string | what happened, in one sentence |

`verdict.json`: `verdict` and `histories`, each with its `verdict` and its `checkers` (`checker`,
`verdict`, `reason`, `counts`, `tolerated`).

A run keeps no state: a run that was killed is started again. While `verdict.json` is missing, or
older than the histories, no run has ended.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftmq.pipeline import durable

from .bag import check_bag, doubt
from .history import INVOKE, OK, POLL, SEND, Recorded
from .key_order import check_key_order
from .log import check_log
from .messages import Case
from .rules import (
    ARROW,
    INVALID,
    KEY_ORDER,
    LOG,
    TOTAL_QUEUE,
    UNDECIDED,
    VALID,
    Found,
    Judged,
    Rules,
    undecided,
)
from .survey import survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = pa.schema(
    [
        ("history", pa.string()),
        ("checker", pa.string()),
        ARROW.field("kind"),
        ("is_tolerated", pa.bool_()),
        *(ARROW.field(name) for name in ARROW.names if name != "kind"),
    ]
)
"""The schema of `violations.parquet`."""


class Report(NamedTuple):
    """The report on a history."""

    history: str
    verdict: str
    """The worst of its checkers: `INVALID` before `UNDECIDED` before `VALID`."""
    rows: int
    operations: int
    checkers: tuple[Judged, ...]
    violations: pa.Table
    """Rows of `TABLE`."""


def judge(
    spark: "SparkSession",
    recorded: Recorded,
    rules: Rules,
    *,
    checkers: Sequence[str] = (),
    told: Callable[[str], None] = lambda step: None,
) -> Report:
    """Judge one history.

    Args:
        spark: the session that runs it.
        recorded: the history.
        rules: the promises that it is judged by.
        checkers: some of `rules.CHECKERS`; none: the total queue, and the log if there are offsets.
        told: called before each step with a description of the step, for people.

    Raises:
        PipelineError: it is not a history.
    """
    told(f"{recorded.name}: how operations ended")
    case = Case(spark, recorded, survey(spark, recorded), rules)
    try:
        both = [_judged(case, found) for found in _found(case, checkers, told)]
    finally:
        case.close()
    judged = tuple(one for one, _ in both)
    violations = pa.concat_tables(table for _, table in both)
    verdict = worst(one.verdict for one in judged)
    seen = case.seen
    return Report(recorded.name, verdict, seen.rows, seen.operations, judged, violations)


def worst(verdicts: Iterable[str]) -> str:
    """Invalid if any is, else unknown if any is or there is none, else valid.

    >>> worst(["valid", "unknown"]), worst([]), worst(["valid"])
    ('unknown', 'unknown', 'valid')
    """
    seen = set(verdicts)
    if INVALID in seen:
        return INVALID
    return VALID if seen == {VALID} else UNDECIDED


def store(reports: Sequence[Report], folder: str | Path) -> None:
    """Write the violations and the verdict of all histories; durable on return."""
    folder = Path(folder)
    durable.make_folders(folder)
    # An old verdict must not stand beside new violations.
    durable.withdraw(folder / "verdict.json")
    tables = [TABLE.empty_table(), *(report.violations for report in reports)]
    with durable.writing(folder / "violations.parquet") as unfinished:
        pq.write_table(pa.concat_tables(tables), unfinished, compression="zstd")
    content = json.dumps(as_json(reports), indent=2) + "\n"
    durable.replace(folder / "verdict.json", content.encode())


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    """The verdicts, as `verdict.json` holds them."""
    return {
        "verdict": worst(report.verdict for report in reports),
        "histories": [
            {
                "history": report.history,
                "verdict": report.verdict,
                "rows": report.rows,
                "operations": report.operations,
                "checkers": [_checker_json(one) for one in report.checkers],
            }
            for report in reports
        ],
    }


def _checker_json(one: Judged) -> dict[str, Any]:
    return {
        "checker": one.checker,
        "verdict": one.verdict,
        "reason": one.reason,
        "counts": one.counts,
        "tolerated": list(one.tolerated),
    }


def _found(case: Case, checkers: Sequence[str], told: Callable[[str], None]) -> Iterator[Found]:
    seen = case.seen
    if seen.others:
        why = f"only send, poll, ack and assign are judged here, not {', '.join(seen.others)}"
        yield undecided("judge", why)
        return
    if not checkers:
        checkers = (TOTAL_QUEUE, LOG) if seen.has_offsets else (TOTAL_QUEUE,)
    sent = seen.rows_of(SEND, INVOKE)
    why = doubt(sent, seen.rows_of(SEND, OK), seen.rows_of(POLL, OK), sent)
    for checker in checkers:
        told(f"{case.recorded.name}: {checker}")
        yield undecided(checker, why) if why else _CHECKS[checker](case)


_CHECKS: Mapping[str, Callable[[Case], Found]] = {
    TOTAL_QUEUE: check_bag,
    LOG: check_log,
    KEY_ORDER: check_key_order,
}


def _judged(case: Case, found: Found) -> tuple[Judged, pa.Table]:
    """Count the findings of a checker, and bring the first of each kind here."""
    if found.findings is None:
        return Judged(found.checker, UNDECIDED, found.reason, {}), TABLE.empty_table()
    first, counts = _counted(case, found.findings)
    counts = dict.fromkeys(found.kinds, 0) | counts | dict(found.counts)
    broken = {kind for kind in found.kinds if counts[kind]}
    tolerated = tuple(sorted(broken & found.tolerated))
    doubts = [found.doubts[kind] for kind in tolerated if kind in found.doubts]
    verdict = INVALID if broken - found.tolerated else UNDECIDED if doubts else VALID
    reason = "; ".join(doubts) if verdict == UNDECIDED else ""
    is_tolerated = pc.is_in(first["kind"], pa.array(sorted(found.tolerated), pa.string()))
    columns = {
        "history": pa.repeat(pa.scalar(case.recorded.name), len(first)),
        "checker": pa.repeat(pa.scalar(found.checker), len(first)),
        "is_tolerated": is_tolerated,
        **{name: first[name] for name in first.column_names},
    }
    table = pa.table({name: columns[name] for name in TABLE.names}).cast(TABLE)
    judged = Judged(found.checker, verdict, reason, counts, tolerated, found.kinds)
    return judged, table


def _counted(case: Case, findings: "DataFrame") -> tuple[pa.Table, dict[str, int]]:
    """The first findings of each kind, by the history's rows, and how many there are."""
    from pyspark.sql import functions as f

    first = f.min_by(f.struct(*findings.columns), "row", case.rules.examples_max)
    by_kind = findings.groupBy("kind").agg(f.count("*").alias("count"), first.alias("first"))
    table = by_kind.toArrow().sort_by("kind")
    counts = dict(zip(table["kind"].to_pylist(), table["count"].to_pylist(), strict=True))
    rows = pc.list_flatten(table["first"].combine_chunks())
    names = findings.columns
    return pa.table({name: pc.struct_field(rows, name) for name in names}), counts
