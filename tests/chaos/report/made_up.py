"""Runs that never happened, to draw: a cluster under faults, with or without a lost message."""

from random import Random

from raftmq.chaos.faults import FAULTS, Event, Schedule, World
from raftmq.chaos.outcome import Coverage, Happening, Outcome, Violation
from raftmq.checkers import Verdict, judge, worst
from raftmq.checkers.history import History, Recorder

SECONDS = 20.0


class Clock:
    """Nanoseconds that a scenario sets."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def history(*, lost: int = 0, operations: int = 600, seed: int = 1) -> History:
    """Two producers and a consumer; `lost` acknowledged messages are never delivered."""
    random, clock = Random(seed), Clock()
    recorder = Recorder(clock)
    ends: list[tuple[int, int, str, int, int]] = []
    step = int(SECONDS * 0.9e9) // operations
    queue: list[int] = []
    for number in range(operations):
        begin = number * step
        for at, operation, kind, value, offset in [end for end in ends if end[0] <= begin]:
            clock.now = at
            _end(recorder, operation, kind, value, offset)
        ends = [end for end in ends if end[0] > begin]
        clock.now = begin
        is_faulty = 5e9 < begin < 8e9
        latency = int(random.lognormvariate(1.2, 0.8) * 1e6 * (30 if is_faulty else 1))
        if number % 4 == 3:
            poll = recorder.invoke(9, "poll", key="orders")
            clock.now += int(latency / 3)
            recorder.ok_many(poll, [("orders", value, value) for value in queue])
            queue.clear()
            continue
        value = recorder.unique_value()
        send = recorder.invoke(number % 2, "send", key="orders", value=value)
        kind = "unknown" if is_faulty and random.random() < 0.2 else "ok"
        ends.append((begin + latency, send, kind, value, value))
        if kind == "ok" and not (lost and begin > 6e9 and lost_now(queue)):
            queue.append(value)
        elif kind == "ok":
            lost -= 1
    for at, operation, kind, value, offset in sorted(ends):
        clock.now = max(at, clock.now)
        _end(recorder, operation, kind, value, offset)
    clock.now = int(SECONDS * 0.95e9)
    poll = recorder.invoke(9, "poll", key="orders")
    clock.now += 4_000_000
    recorder.ok_many(poll, [("orders", value, value) for value in queue])
    return recorder.history()


def lost_now(queue: list[int]) -> bool:
    """Lose one that has others around it in its poll."""
    return len(queue) == 1


def _end(recorder: Recorder, operation: int, kind: str, value: int, offset: int) -> None:
    if kind == "ok":
        recorder.ok(operation, value=value, offset=offset)
    else:
        recorder.unknown(operation)


def outcome(*, lost: int = 2) -> Outcome:
    """A run of the simulated world with some faults."""
    events = (
        Event(1_200, "delay", (1, 2, 3), 1_500, 50.0),
        Event(5_000, "isolate-leader", (), 2_600),
        Event(5_900, "power-loss", (2,)),
        Event(9_000, "pause", (3,), 1_400),
        Event(11_000, "kill", (1,)),
    )
    assert all(event.fault in FAULTS for event in events)
    schedule = Schedule(1234, SECONDS, events)
    seen = history(lost=lost)
    reports = judge(seen)
    violations = [
        Violation(one.name, 19_004, one.fact) for report in reports for one in report.anomalies
    ]
    if lost:
        violations.append(
            Violation("R5", 8_100, "node 2 applied crc 9f2c00d1 at index 88, node 3 crc 0b1e77aa")
        )
    return Outcome(
        World.SIM,
        schedule,
        worst([Verdict.INVALID] if lost else [report.verdict for report in reports]),
        tuple(sorted(violations, key=lambda one: one.at_ms)),
        "5f0c" * 8,
        {"elections": 3, "acked": 412, "crashes": 2, "power-loss": 1},
        {Coverage("leader", "same", "level", "isolate-leader"): 1},
        SECONDS,
        "",
        seen,
        tuple(_timeline()),
        compared={"total-queue": 412},
        struck={"isolate-leader": 1},
    )


def _timeline() -> list[Happening]:
    rows = [(0, 0, "cluster founded")]
    rows += [(300, node, f"follower of group {group}, term 1") for node in (1, 2, 3)
             for group in (0, 1)]  # fmt: skip
    rows += [
        (420, 1, "leader of group 0, term 1"),
        (450, 1, "leader of group 1, term 1"),
        (1_200, 0, "delay begins"),
        (2_700, 0, "delay ends"),
        (5_000, 1, "isolate-leader begins"),
        (5_900, 2, "power-loss"),
        (5_900, 2, "loses power"),
        (6_000, 3, "candidate of group 0, term 2"),
        (6_000, 3, "candidate of group 1, term 2"),
        (6_800, 2, "follower of group 0, term 2"),
        (6_800, 2, "follower of group 1, term 2"),
        (6_900, 3, "leader of group 0, term 2"),
        (6_950, 3, "leader of group 1, term 2"),
        (7_600, 1, "isolate-leader ends"),
        (7_650, 1, "follower of group 0, term 2"),
        (7_650, 1, "follower of group 1, term 2"),
        (9_000, 3, "pause begins"),
        (10_400, 3, "pause ends"),
        (9_900, 2, "leader of group 1, term 3"),
        (10_450, 3, "follower of group 1, term 3"),
        (11_000, 1, "kill"),
        (11_000, 1, "dead"),
        (15_000, 1, "starts again"),
        (15_200, 1, "follower of group 0, term 2"),
        (15_200, 1, "follower of group 1, term 3"),
    ]
    return [Happening(*row) for row in sorted(rows, key=lambda row: row[0])]
