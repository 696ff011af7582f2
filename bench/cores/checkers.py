"""The cost of judging: queue and log checkers on many operations, the search on recorded histories.

    python -m bench.cores.checkers [OPERATIONS [CORPUS]]

Processor seconds of one core, and operations a second. The generated history has no anomaly: ten
producers, ten readers, a hundred queues, polls of ten messages, so that every check runs to its
end. `CORPUS` is a folder of recorded histories for `raftmq.checkers.check`.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from raftmq.checkers import (
    History,
    LogRules,
    Recorder,
    Report,
    Verdict,
    check_key_order,
    check_linearizability,
    check_log,
    check_total_queue,
    check_zones,
    judge,
    read_history,
    read_parquet,
    write_parquet,
)
from raftmq.checkers.check import histories_in
from raftmq.checkers.history import NONE, Integers, RowType

POLL_MESSAGES = 10
QUEUES = 100
PROCESSES = 10

Result = TypeVar("Result")


def measured(name: str, operations: int, work: Callable[[], Result]) -> Result:
    """Run `work` once and print its processor seconds; returns its result."""
    start = time.process_time()
    result = work()
    seconds = time.process_time() - start
    rate = operations / max(seconds, 1e-9)
    verdict = result.verdict.value if isinstance(result, Report) else ""
    print(f"{name:36} {operations:10,} {seconds:9.2f} s {rate:14,.0f}/s  {verdict}")
    return result


def queue_history(operations: int) -> History:
    """Sends of one message each, and polls of ten messages; 1 in 11 operations is a poll."""
    polls = operations // (POLL_MESSAGES + 1)
    sends = polls * POLL_MESSAGES
    value = np.arange(sends, dtype=np.int64)
    # Ten sends to one queue, then the poll that reads them; the queues take turns.
    queue = value // POLL_MESSAGES % QUEUES
    offset = value // (POLL_MESSAGES * QUEUES) * POLL_MESSAGES + value % POLL_MESSAGES
    send_operation = value + value // POLL_MESSAGES
    poll_operation = np.arange(polls) * (POLL_MESSAGES + 1) + POLL_MESSAGES
    got_operation = poll_operation[value // POLL_MESSAGES]
    first = value[::POLL_MESSAGES]
    # (operation, row inside it): the order of the rows.
    parts: Sequence[tuple[Integers, int, int, int, Integers, Integers, Integers]] = (
        (send_operation, 0, RowType.INVOKE, 0, queue, value, np.full(sends, NONE)),
        (send_operation, 1, RowType.OK, 0, queue, value, offset),
        (
            poll_operation,
            0,
            RowType.INVOKE,
            1,
            queue[first],
            np.full(polls, NONE),
            np.full(polls, NONE),
        ),
        (got_operation, 1, RowType.OK, 1, queue, value, offset),
    )
    operation, place, kind, function, key, values, offsets = (
        np.concatenate(
            [np.broadcast_to(np.asarray(part[column]), part[0].shape) for part in parts]
        ).astype(np.int64)
        for column in range(7)
    )
    order = np.lexsort((values, place, operation))
    process = np.where(function == 0, key % PROCESSES, PROCESSES + key % PROCESSES)
    return History(
        operation=operation[order], process=process[order], type=kind[order],
        function=function[order], key=key[order], value=values[order], offset=offsets[order],
        time=np.arange(len(operation), dtype=np.int64) * 1000, functions=["send", "poll"],
        keys=[f"q{number}" for number in range(QUEUES)], values=range(sends),
    )  # fmt: skip


def register_history(operations: int) -> History:
    """Writes of unique values and reads, four processes a register, a hundred registers."""
    recorder = Recorder(clock=lambda: 0)
    state: list[int | None] = [None] * QUEUES
    for number in range(operations // 4):
        key = number % QUEUES
        name = f"x{key}"
        first = recorder.invoke(4 * key, "write", name, number)
        second = recorder.invoke(4 * key + 1, "read", name)
        third = recorder.invoke(4 * key + 2, "read", name)
        recorder.ok(second, value=state[key])
        recorder.ok(first)
        recorder.ok(third, value=number)
        state[key] = number
        recorder.ok(recorder.invoke(4 * key + 3, "read", name), value=number)
    return recorder.history()


def judge_corpus(corpus: Path) -> dict[str, list[Report]]:
    """Read and judge each file."""
    return {
        path.name: judge(read_history(path), is_shrinking=False) for path in histories_in(corpus)
    }


def main() -> None:
    """Print the table."""
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{'what':36} {'operations':>10} {'processor':>11} {'rate':>16}")
    history = queue_history(operations)
    rules = LogRules(is_send_contiguous=True, lag_ms_max=1000)
    measured("total queue", operations, lambda: check_total_queue(history))
    measured("log", operations, lambda: check_log(history, rules))
    measured("key order", operations, lambda: check_key_order(history))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.parquet"
        measured("write as Parquet", operations, lambda: write_parquet(history, path))
        print(f"{'':36} {path.stat().st_size / operations:10.1f} bytes an operation")
        measured("read from Parquet", operations, lambda: read_parquet(path))
    registers = measured("record registers", operations, lambda: register_history(operations))
    measured("zones", operations, lambda: check_zones(registers))
    part = register_history(operations // 10)
    measured("search", operations // 10, lambda: check_linearizability(part, method="search"))
    if len(sys.argv) > 2:
        corpus = Path(sys.argv[2])
        count = len(histories_in(corpus))
        found = measured("recorded histories", count, lambda: judge_corpus(corpus))
        verdicts = [report.verdict for reports in found.values() for report in reports]
        print({one.value: verdicts.count(one) for one in Verdict})


if __name__ == "__main__":
    main()
