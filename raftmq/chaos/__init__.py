"""Breaking things on purpose, and judging what clients saw: histories and checkers.

Start reading at `history` (what is written down), then `checkers` (what is made of it), and `check`
(the same from the command line).

    >>> from raftmq.chaos import Recorder, check_total_queue
    >>> recorder = Recorder()
    >>> send = recorder.invoke(0, "send", value=recorder.unique_value())
    >>> recorder.ok(send)
    >>> poll = recorder.invoke(1, "poll")
    >>> recorder.ok_many(poll, [])
    >>> report = check_total_queue(recorder.history())
    >>> report.verdict.value, sorted(report.names())
    ('invalid', ['lost-postfix'])

The names are loaded when first used (PEP 562): pytest loads `plugin` wherever raftmq is installed,
and shall not wait for numpy there.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftmq.chaos.checkers import (
        ANOMALIES,
        INVARIANTS,
        Anomaly,
        Evidence,
        Limit,
        LogRules,
        Report,
        Verdict,
        check_evidence,
        check_key_order,
        check_linearizability,
        check_log,
        check_total_queue,
        check_zones,
        explain,
        judge,
        read_history,
        with_entries,
        worst,
    )
    from raftmq.chaos.history import (
        History,
        NotAHistory,
        Recorder,
        RowType,
        read_parquet,
        write_parquet,
    )

__all__ = [
    "ANOMALIES",
    "INVARIANTS",
    "Anomaly",
    "Evidence",
    "History",
    "Limit",
    "LogRules",
    "NotAHistory",
    "Recorder",
    "Report",
    "RowType",
    "Verdict",
    "check_evidence",
    "check_key_order",
    "check_linearizability",
    "check_log",
    "check_total_queue",
    "check_zones",
    "explain",
    "judge",
    "read_history",
    "read_parquet",
    "with_entries",
    "worst",
    "write_parquet",
]

_OF_HISTORY = {"History", "NotAHistory", "Recorder", "RowType", "read_parquet", "write_parquet"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'raftmq.chaos' has no attribute {name!r}")
    home = "raftmq.chaos.history" if name in _OF_HISTORY else "raftmq.chaos.checkers"
    value: object = getattr(import_module(home), name)
    # The next use finds it without this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
