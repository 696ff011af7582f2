"""Groups that pop and are moved to another place: all messages from there on come again.

| function | key | value of its invoke | value of its answer |
|---|---|---|---|
| `reset` | group and queue, a row a queue | the place, an offset | the same, or -1 if unknown |

A clone is a reset of the new group; its invoke has no key, as only its answer names the places.
Pops and acknowledgements are written down as in `calls`.

| anomaly | what is wrong |
|---|---|
| `reset-lost` | a message behind the place was not acknowledged after the reset |
| `reset-unfenced` | a token of before the reset settled a message after it |
| `clone-early` | a group that was made as a clone was handed a message before its place |

Invariants:
- A reset promises only the messages behind both places if another reset of its queue overlaps it,
  comes after it, or has no answer.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from raftmq.checkers.history import History, RowType
from raftmq.checkers.rows import number_of, rows_of
from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly, Report, judged

from .calls import Call, QueueTraffic, Settlement, pop_traffic, sends_of

CHECKER = "resets"
RESET = "reset"


@dataclass(frozen=True, slots=True)
class Reset:
    """A group, or an instance of one, is moved in one queue."""

    call: Call
    target: int
    """The place: the offset of the next message for the group."""

    @property
    def is_done(self) -> bool:
        """Whether the reset surely happened."""
        return self.call.outcome is RowType.OK

    def is_over(self, row: int) -> bool:
        """Whether the reset can no longer move the group from this row on."""
        return self.is_done and self.call.end < row

    def floor(self, others: Iterable["Reset"]) -> int:
        """The offset from which all messages must come after the reset, whatever the others did."""
        places = [one.target for one in others if not one.is_over(self.call.begin)]
        return max([self.target, *places])


@dataclass(slots=True)
class Found:
    """The number of a checker's comparisons, and the anomalies found."""

    compared: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)

    def note(self, name: str, fact: str, *calls: Call) -> None:
        """Add an anomaly; the first few of each name are kept."""
        self.counts[name] += 1
        if self.counts[name] <= EXAMPLES_MAX:
            operations = tuple(call.operation for call in calls)
            self.anomalies.append(Anomaly(name, fact, operations))


def resets_of(history: History) -> dict[str, list[Reset]]:
    """By group and queue: all resets that may have happened, in order."""
    asked: dict[tuple[int, str], Reset] = {}
    for row in rows_of(history, RESET):
        # A refused reset moved nothing, and would never count as over: it would excuse losses.
        if row.key and row.call.outcome is not RowType.FAIL:
            asked[row.call.operation, row.key] = Reset(row.call, number_of(row.value))
    found: dict[str, list[Reset]] = defaultdict(list)
    for (_, key), reset in asked.items():
        found[key].append(reset)
    return found


def check_resets(history: History, *, clones: Collection[str], is_drained: bool) -> Report:
    """Judge the resets of groups that pop and acknowledge all that they are handed.

    Args:
        history: what clients did.
        clones: groups that were made as clones, and never moved since.
        is_drained: False: messages may be left.
    """
    found = Found()
    ends: Counter[str] = Counter()
    for sent in sends_of(history):
        if sent.call.outcome is RowType.OK:
            ends[sent.queue] = max(ends[sent.queue], sent.offset + 1)
    traffic = pop_traffic(history)
    for key, resets in sorted(resets_of(history).items()):
        group, _, queue = key.rpartition(" ")
        of_queue = traffic.get(key, QueueTraffic(group, queue))
        done = [reset for reset in resets if reset.is_done]
        for reset in done:
            if is_drained and "@" not in group:
                _look_for_lost(found, of_queue, reset, reset.floor(resets), ends[queue])
            _look_for_unfenced(found, of_queue, reset)
        if group in clones and len(resets) == 1 and done:
            _look_for_early(found, of_queue, done[0])
    return judged(CHECKER, found.anomalies, found.counts, compared=found.compared)


def _look_for_lost(
    found: Found, of_queue: QueueTraffic, reset: Reset, floor: int, end: int
) -> None:
    settled = {
        one.offset
        for one in of_queue.settlements
        if not one.is_refused and one.call.end > reset.call.begin
    }
    for offset in range(floor, end):
        found.compared += 1
        if offset not in settled:
            fact = f"{of_queue.name}: after the reset to {reset.target} {offset} was never acked"
            found.note("reset-lost", fact, reset.call)


def _look_for_unfenced(found: Found, of_queue: QueueTraffic, reset: Reset) -> None:
    before = {
        (one.token, one.offset): one
        for one in of_queue.deliveries
        if one.call.end < reset.call.begin
    }
    for one in _first_of_each(of_queue.settlements):
        handed = before.get((one.token, one.offset))
        if handed is None or one.call.begin < reset.call.end:
            continue
        found.compared += 1
        if one.is_done:
            fact = f"{of_queue.name}: offset {one.offset} was settled with {handed}, reset since"
            found.note("reset-unfenced", fact, handed.call, reset.call, one.call)


def _first_of_each(settlements: Collection[Settlement]) -> Iterator[Settlement]:
    """The first settlement of each token and message: a repeat gets the first call's answer."""
    seen: set[tuple[int, int]] = set()
    for one in settlements:
        if (one.token, one.offset) not in seen:
            seen.add((one.token, one.offset))
            yield one


def _look_for_early(found: Found, of_queue: QueueTraffic, clone: Reset) -> None:
    for one in of_queue.deliveries:
        found.compared += 1
        if one.offset < clone.target:
            fact = f"{of_queue.name}: offset {one.offset} came, the clone begins at {clone.target}"
            found.note("clone-early", fact, clone.call, one.call)
