"""The report's rounds: look, read, close minutes, judge, write down, publish.

    with running.opened(folder, mq, reader=..., rules=...) as report:
        while (step := report.round()).is_behind: ...

A round reads each log to where it ended when the round began, at most `RECORDS_MAX` records of it.
A log that has nothing new costs no task.

| killed | what the next start does |
|---|---|
| before the state is written | reads the same records again: nothing of the round is anywhere |
| after that, while it is published | publishes what the state says; see `tables` and `alerts` |
| after that | goes on |

Left out: a checkpoint of Spark. The offsets that were read and their results are in one file; two
files could differ.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from .alerts import send
from .cluster_poll import look_at
from .event_reader import Reader, Task
from .fold_state import Carry
from .minute_facts import MINUTE_MS
from .minute_fold import Folding
from .minute_ledger import GRACE_MS, Look
from .rules import Rule
from .state import Outbox, State, load, locked, save
from .tables import write

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient

RECORDS_MAX = 100_000
"""Records of a log that one task reads."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a round."""

    records: int
    """Records of all logs that were read."""
    left: int
    """Records that are there and were not read yet."""
    minutes: tuple[int, ...]
    """Minutes that were published, milliseconds since 1970; some for the second time."""
    alerts: int
    """Alerts that opened or closed."""

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read at once."""
        return self.left > 0


class Report:
    """A report that is written to a folder. Made by `opened`."""

    def __init__(
        self,
        folder: Path,
        mq: "BlockingClient",
        reader: Reader,
        rules: Sequence[Rule],
        topic: str | None,
        state: State,
    ) -> None:
        self._folder = folder
        self._mq = mq
        self._reader = reader
        self._rules = rules
        self._topic = topic
        # The process before may have ended before or after it published the outbox.
        self._is_published = False
        self.state = state
        """The report's state, as after the last round."""

    def round(self, look: Look | None = None) -> Step:
        """One round; `look`: a look at the cluster, None: take one.

        Raises:
            PySparkException: a task failed for good: a log was trimmed while it was read, for
                instance; the next round goes on behind that.
            Unavailable: the cluster did not answer in time. The next round goes on.
        """
        if not self._is_published:
            # The outbox of the last round is not published yet, and this round would replace it.
            self.publish()
        look = look or look_at(self._mq, has_standings=self._is_due())
        tasks, firsts = self._tasks(look)
        state, ledger = self.state, self.state.ledger
        for done in self._reader(tasks) if tasks else []:
            number = done.partition_group
            ledger.take(number, done.facts, is_first=number in firsts)
            state.carries[number] = done.carry
        state.offsets.update({task.partition_group: task.stop for task in tasks})
        for number, (first, end) in look.ranges.items():
            # A log without records has no task.
            reached = state.offsets[number] = max(state.offsets.get(number, 0), first)
            if reached >= end:
                self._appear(number, look)
                ledger.reached_end(number, look.time)
        ledger.see(look)
        minutes = self._close(look)
        if tasks or minutes:
            # The state is durable before its outbox is published: after a crash between the two
            # the next start publishes the same rows and alerts.
            save(self._folder, state)
            self._is_published = False
            self.publish()
        left = sum(max(0, end - state.offsets[n]) for n, (_, end) in look.ranges.items())
        records = sum(task.stop - task.start for task in tasks)
        return Step(records, left, minutes, len(state.outbox.alerts))

    def publish(self) -> None:
        """Publish the outbox of the last round. Publishing it again changes nothing.

        Raises:
            Unavailable, OutcomeUnknown: the alerts' topic did not take them in time.
        """
        outbox = self.state.outbox
        write(self._folder, "report_minute", outbox.rows)
        write(self._folder, "alert", [structs.asdict(alert) for alert in outbox.alerts])
        if self._topic is not None:
            for alert in outbox.alerts:
                send(self._mq, self._topic, self.state.name, alert)
        self._is_published = True

    def _is_due(self) -> bool:
        """Whether a minute may be closed in this round."""
        import time

        closed = self.state.ledger.closed
        return not closed or closed + MINUTE_MS + GRACE_MS <= time.time_ns() // 1_000_000

    def _tasks(self, look: Look) -> tuple[list[Task], set[int]]:
        """The ranges to read, and the partition groups that are read from their first record."""
        tasks: list[Task] = []
        firsts: set[int] = set()
        for number, (first, end) in sorted(look.ranges.items()):
            start = self.state.offsets.get(number, 0)
            carry = self.state.carries.get(number, b"")
            if start < first:
                # The carry does not reach to the first record that the log still has.
                start, carry = first, b""
                firsts.add(number)
            stop = min(end, start + RECORDS_MAX)
            if start < stop:
                tasks.append(Task(number, start, stop, carry, look.attachments))
        return tasks, firsts

    def _appear(self, number: int, look: Look) -> None:
        """Give new groups levels, though they have touched nothing."""
        there = sorted(each.number for each in look.attachments)
        if self.state.attached.get(number) == there:
            return
        carry = Carry.unpack(self.state.carries.get(number, b""))
        minute = look.time - look.time % MINUTE_MS
        facts = Folding(carry, look.attachments).appear(minute)
        self.state.ledger.take(number, facts, is_first=False)
        self.state.carries[number] = carry.pack()
        self.state.attached[number] = there

    def _close(self, look: Look) -> tuple[int, ...]:
        ledger, outbox = self.state.ledger, Outbox()
        minutes: list[int] = []
        new_from = ledger.closed
        for minute, rows in ledger.close(look):
            minutes.append(minute)
            outbox.rows += rows
            # A minute that is published again was judged when it was closed.
            if minute >= new_from:
                outbox.alerts += self.state.judge.judge(self._rules, rows)
        self.state.outbox = outbox
        return tuple(minutes)


@contextmanager
def opened(
    folder: Path,
    mq: "BlockingClient",
    *,
    reader: Reader,
    rules: Sequence[Rule],
    topic: str | None = None,
) -> Iterator[Report]:
    """A report that goes on where the last one ended, in a folder that is made if there is none.

    Args:
        folder: where tables and state are.
        mq: a client of the cluster.
        reader: where tasks run.
        rules: the rules for alerts.
        topic: where alerts are sent, too; None: nowhere.

    Raises:
        PipelineError: another process has the folder, or its state cannot be read.
        Rejected: `UNKNOWN_TOPIC`, that of the alerts.
    """
    if topic is not None:
        mq.admin.describe_topic(topic)
    with locked(folder):
        state = load(folder) or State(secrets.token_hex(8))
        yield Report(folder, mq, reader, rules, topic, state)
