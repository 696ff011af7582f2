"""Matching: the masks kept of each batch, their memory, and how long they are kept."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from raftmq.batch import Value, encode
from raftmq.broker import loop_budget
from raftmq.broker.deliver import matching as matching_module
from raftmq.broker.deliver.matching import RECENT_MAX, SCAN_MAX, Matching
from raftmq.broker.loop_budget import TURN_SECONDS, MaskBudget, Turn
from raftmq.log.builder import Placement
from raftmq.log.record import Kind
from raftmq.machine.commands import encode_commands
from raftmq.machine.subscriptions import Change, Resubscribe
from raftmq.wire.messages import ErrorReply
from tests.machine.test_machine import Log

TOPIC = 1
QUEUE = TOPIC << 16
MESSAGES = 4


class Replica:
    """The parts of a partition group that matching needs; batches have four messages each."""

    number = 1
    is_leader = True

    def __init__(self) -> None:
        self.log = Log()
        self.placements: list[Placement] = []
        self.index = SimpleNamespace(lookup=self._lookup)
        self.cache = SimpleNamespace(get=lambda index: self.log.records[index - 1])
        self.store = None

    @property
    def machine(self) -> Any:
        return self.log.machine

    def _lookup(self, _: int, offset: int, limit: int) -> list[Placement]:
        return [p for p in self.placements if p.base_offset + p.count > offset][:limit]

    def subscribe(self, *texts: str) -> None:
        """Groups g1, g2, … with these filters."""
        known = self.machine.subscriptions
        have = {number for _, _, number in known.latest()}
        changes = [
            Change(TOPIC, f"g{n}", n, text) for n, text in enumerate(texts, 1) if n not in have
        ]
        command = Resubscribe(known.version, known.version + 1, changes)
        self.log.add(Kind.COMMANDS, encode_commands([command]))

    def send(
        self,
        first: int,
        *,
        count: int = MESSAGES,
        is_damaged: bool = False,
        rows: list[Mapping[str, Value | None] | None] | None = None,
    ) -> Placement:
        """A batch whose messages have these properties, or `n` from `first` on."""
        rows = rows or [{"n": n} for n in range(first, first + count)]
        count = len(rows)
        payload = encode([b""] * count, props=rows).to_bytes(queue=QUEUE, producer=first)
        if is_damaged:
            payload = payload[:80] + bytes(len(payload) - 80)
        self.log.add(Kind.BATCH, payload)
        base = sum(placement.count for placement in self.placements)
        self.placements.append(Placement(QUEUE, base, count, self.machine.applied))
        return self.placements[-1]


class Waiting:
    def __init__(self) -> None:
        self.names: list[set[str]] = []
        self.fed = 0

    def on_caught_up(self) -> None:
        self.fed += 1

    async def matched(self, queue: int, names: set[str], turn: Turn) -> None:
        assert queue == QUEUE
        self.names.append(names)

    def not_matched(self, queue: int, why: ErrorReply) -> None:
        raise AssertionError(f"{queue}: {why}")


class Ticking(trio.abc.Clock):
    """A clock that advances with each reading, so that work takes a fixed time."""

    STEP = TURN_SECONDS / 20

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        self._now += self.STEP
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self._now else 0.001


def matching_of(replica: Replica, *, bytes_max: int = 1 << 20) -> tuple[Matching, Waiting]:
    waiting = Waiting()
    matching = Matching(
        lambda _: replica,  # type: ignore[arg-type, return-value]
        waiting,
        reader=None,  # type: ignore[arg-type]
        on_error=lambda error: ErrorReply("unavailable", str(error)),
        on_caught_up=waiting.on_caught_up,
        bytes_max=bytes_max,
    )
    return matching, waiting


def matched(replica: Replica, *, bytes_max: int = 1 << 20) -> tuple[Matching, Waiting]:
    """A matching that has matched all batches of the replica."""
    matching, waiting = matching_of(replica, bytes_max=bytes_max)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(matching.run)
            matching.want(replica, replica.placements)  # type: ignore[arg-type]
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    return matching, waiting


def run_beside(matching: Matching, replica: Replica, other: Callable[[], object]) -> int:
    """Match all batches beside another task; returns the number of turns that the task had."""
    turns = 0

    async def main() -> None:
        nonlocal turns
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(matching.run)
                matching.want(replica, replica.placements)  # type: ignore[arg-type]
                while matching.batches < len(replica.placements):
                    other()
                    turns += 1
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

    trio.run(main, clock=Ticking())
    return turns


def scan(matching: Matching, replica: Replica, group: str, offset: int = 0) -> Any:
    kept = replica.machine.subscriptions.of(TOPIC, group)
    return matching.scan(replica, kept, QUEUE, offset)  # type: ignore[arg-type]


def test_batches_are_matched_once_for_all_groups() -> None:
    replica = Replica()
    replica.subscribe("n = 1 OR n = 9", "n > 5", "n < 0")
    first, second, third = (replica.send(n) for n in (0, 4, 8))
    matching, waiting = matched(replica)
    assert matching.batches == 3
    assert set().union(*waiting.names) == {"g1", "g2"}
    found = {group: scan(matching, replica, group) for group in ("g1", "g2", "g3")}
    assert found["g1"].found == [first, third]
    assert found["g2"].found == [second, third]
    assert found["g3"].found == []
    assert {each.reached for each in found.values()} == {12}


def test_scan_stops_at_a_batch_that_was_not_matched() -> None:
    replica = Replica()
    replica.subscribe("n = 1")
    replica.send(0)
    matching, _ = matched(replica)
    unknown = replica.send(4)
    found = scan(matching, replica, "g1")
    assert (found.reached, found.unknown) == (4, [unknown])


def test_vectors_are_bounded_and_the_oldest_give_way() -> None:
    replica = Replica()
    replica.subscribe("n >= 0")
    for n in range(50):
        replica.send(n * MESSAGES)
    matching, _ = matched(replica, bytes_max=4_000)
    assert 3_000 < matching.bytes <= 4_000
    assert scan(matching, replica, "g1").unknown[0] == replica.placements[0]
    last = replica.placements[-1]
    assert scan(matching, replica, "g1", last.base_offset).found == [last]


def test_equal_vectors_are_kept_once() -> None:
    replica = Replica()
    replica.subscribe(*["n >= 0"] * 100)
    for n in range(50):
        replica.send(n * MESSAGES)
    matching, _ = matched(replica)
    assert len(matching._shared) == 1
    assert matching.bytes < 50 * 400


def test_group_that_subscribes_for_the_first_time_has_old_batches_matched_again() -> None:
    replica = Replica()
    replica.subscribe("n = 1")
    replica.send(0)
    matching, _ = matched(replica)
    assert not scan(matching, replica, "g1").unknown
    replica.subscribe("n = 1", "n = 2")
    assert scan(matching, replica, "g2").unknown == replica.placements
    assert scan(matching, replica, "g1").unknown == replica.placements


def test_vectors_that_hold_no_more_are_bounded_with_the_others() -> None:
    replica = Replica()
    for n in range(10):
        replica.send(n * MESSAGES)
    matching, _ = matching_of(replica, bytes_max=4_000)
    texts: list[str] = []
    for _ in range(5):
        texts.append("n >= 0")
        replica.subscribe(*texts)
        matching.batches = 0
        run_beside(matching, replica, lambda: None)
        assert 2_000 < matching.bytes <= 4_000
        for group in ("g1", f"g{len(texts)}"):
            assert scan(matching, replica, group).found == replica.placements
    assert len(matching._order) < 20


def test_batch_that_cannot_be_read_is_for_everybody() -> None:
    replica = Replica()
    replica.subscribe("n = 1")
    placement = replica.send(100, is_damaged=True)
    matching, _ = matched(replica)
    found = scan(matching, replica, "g1")
    assert found.found == [placement]
    record = replica.log.records[placement.index - 1]
    mask = matching.mask(replica, placement, found.wanted[0], record, MaskBudget())  # type: ignore[arg-type]
    assert np.all(mask)


def test_mask_is_the_same_from_memory_and_anew() -> None:
    replica = Replica()
    replica.subscribe("n IN (1, 2, 9)")
    for n in range(0, 400, MESSAGES):
        replica.send(n)
    matching, _ = matched(replica)
    found = scan(matching, replica, "g1")
    assert [p.base_offset for p in found.found] == [0, 8]
    record = replica.log.records[found.found[0].index - 1]
    given: Any = (replica, found.found[0], found.wanted[0], record, MaskBudget())
    mask = matching.mask(*given)
    assert mask is not None
    assert mask.tolist() == [False, True, True, False]
    forget_decoded(matching)
    assert matching._recent_bytes == 0
    mask = matching.mask(*given)
    assert mask is not None
    assert mask.tolist() == [False, True, True, False]


def forget_decoded(matching: Matching) -> None:
    for key in list(matching._recent):
        matching._forget(key)


def work(matching: Matching) -> None:
    """Let the task do what it has to do."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(matching.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_mask_that_takes_long_is_made_to_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching_module, "STEP_BYTES", 0)
    monkeypatch.setattr(matching_module, "ORDERED_BYTES_MAX", 2 * MESSAGES)
    replica = Replica()
    replica.subscribe("n IN (1, 2, 5, 9)", "n >= 0")
    for n in range(0, 3 * MESSAGES, MESSAGES):
        replica.send(n)
    matching, waiting = matched(replica)
    forget_decoded(matching)
    wanted = scan(matching, replica, "g1").wanted
    masks: list[list[bool]] = []
    for placement, each in zip(replica.placements, wanted, strict=True):
        record = replica.log.records[placement.index - 1]
        given: Any = (replica, placement, each, record, MaskBudget())
        assert matching.mask(*given) is None
        # Meanwhile the group waits, and no other one.
        looked = scan(matching, replica, "g1", placement.base_offset)
        assert (looked.found, looked.unknown) == ([], [placement])
        assert len(scan(matching, replica, "g2").found) == 3
        reports = len(waiting.names)
        work(matching)
        assert waiting.names[reports:] == [set()]
        assert scan(matching, replica, "g1", placement.base_offset).found[0] == placement
        mask = matching.mask(*given)
        assert mask is not None
        assert not mask.flags.writeable
        masks.append(mask.tolist())
    assert masks == [
        [False, True, True, False], [False, True, False, False], [False, True, False, False],
    ]  # fmt: skip
    assert sum(map(len, matching._ordered.values())) == matching._ordered_bytes == 2 * MESSAGES


def test_order_of_a_mask_is_dropped_where_another_node_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching_module, "STEP_BYTES", 0)
    replica = Replica()
    replica.subscribe("n IN (1, 2, 9)")
    placement = replica.send(0)
    matching, _ = matched(replica)
    forget_decoded(matching)
    record = replica.log.records[placement.index - 1]
    wanted = scan(matching, replica, "g1").wanted[0]
    given: Any = (replica, placement, wanted, record, MaskBudget())
    assert matching.mask(*given) is None
    replica.is_leader = False
    work(matching)
    assert not matching._orders
    assert not matching._ordered


def test_others_have_their_turn_while_a_mask_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_budget, "TURN_SECONDS", 0.0)
    replica = Replica()
    comparisons = [f"text LIKE '%{n}_x%'" for n in range(20)]
    replica.subscribe(" OR ".join(["n >= 0", *comparisons]))
    rows: Any = [{"n": n, "text": f"{n:2000}"} for n in range(100)]
    placement = replica.send(0, rows=rows)
    matching, _ = matched(replica)
    forget_decoded(matching)
    found = scan(matching, replica, "g1")
    record = replica.log.records[placement.index - 1]
    given: Any = (replica, placement, found.wanted[0], record, MaskBudget())
    turns = 0

    async def main() -> None:
        nonlocal turns
        async with trio.open_nursery() as nursery:
            nursery.start_soon(matching.run)
            assert matching.mask(*given) is None
            while (mask := matching.mask(*given)) is None:
                turns += 1
                await trio.lowlevel.checkpoint()
            assert mask.all()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns >= len(comparisons)


def test_masks_of_an_answer_share_one_step_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica()
    replica.subscribe("text <> 'x' AND n >= 0")
    rows: Any = [{"n": n, "text": f"{n:2000}"} for n in range(100)]
    for n in range(5):
        replica.send(n, rows=rows)
    matching, _ = matched(replica)
    forget_decoded(matching)
    found = scan(matching, replica, "g1")
    budget, made = MaskBudget(), []
    for placement, wanted in zip(found.found, found.wanted, strict=True):
        record = replica.log.records[placement.index - 1]
        given: Any = (replica, placement, wanted, record, budget)
        made.append(matching.mask(*given) is not None)
    assert made == [True, True, False, False, False]
    assert not matching._orders


def test_batches_that_stay_decoded_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica()
    replica.subscribe("n >= 0")
    for n in range(100):
        replica.send(n)
    matching, _ = matched(replica)
    assert len(matching._recent) == RECENT_MAX
    each = len(replica.log.records[-1].encoded)
    monkeypatch.setattr("raftmq.broker.deliver.matching.RECENT_BYTES_MAX", 3 * each)
    matching, _ = matched(replica)
    assert len(matching._recent) == 3
    assert matching._recent_bytes == 3 * each
    monkeypatch.setattr("raftmq.broker.deliver.matching.RECENT_BYTES_MAX", each - 1)
    matching, _ = matched(replica)
    assert (len(matching._recent), matching._recent_bytes) == (0, 0)


def test_filters_of_a_topic_that_is_gone_are_forgotten() -> None:
    replica = Replica()
    replica.subscribe("n = 1")
    replica.send(0)
    matching, _ = matched(replica)
    known = replica.machine.subscriptions
    changes = [Change(TOPIC, "g1", 0), Change(TOPIC + 1, "g1", 2, "n = 2")]
    command = Resubscribe(known.version, known.version + 1, changes)
    replica.log.add(Kind.COMMANDS, encode_commands([command]))
    trio.run(matching._prepare, replica, TOPIC + 1)  # type: ignore[arg-type]
    assert list(matching._topics) == [TOPIC + 1]
    assert list(matching._topics[TOPIC + 1].numbers) == [2]


def test_more_filters_than_a_step_takes_all_enter_the_index() -> None:
    replica = Replica()
    count = 3 * 16 + 1
    replica.subscribe(*[f"n = {n}" for n in range(count)])
    replica.send(count - 4)
    _, waiting = matched(replica)
    assert set().union(*waiting.names) == {f"g{n}" for n in range(count - 3, count + 1)}


def test_others_have_their_turn_while_a_long_batch_is_matched() -> None:
    replica = Replica()
    replica.subscribe(*[f"n <> {n}" for n in range(200)], "n = 7", "n = -1")
    replica.send(0, count=1_000)
    matching, _ = matching_of(replica)
    turns = run_beside(matching, replica, lambda: None)
    # Some 200 filters enter the index, and as many are evaluated; 20 looks at the clock are a turn.
    assert turns >= 15
    assert scan(matching, replica, "g201").found == replica.placements
    assert scan(matching, replica, "g202").found == []


def test_filter_that_comes_while_a_batch_is_matched_is_not_missed() -> None:
    replica = Replica()
    texts = [f"n <> {n}" for n in range(100)]
    replica.subscribe(*texts)
    placement = replica.send(0, count=500)
    matching, waiting = matching_of(replica)
    at: list[int] = []

    def subscribe() -> None:
        at.append(len(matching._topics[TOPIC].numbers) if matching._topics else 0)
        # All filters are in the index, and the batch is under way.
        if at.count(len(texts)) == 2:
            replica.subscribe(*texts, "n = 7")

    run_beside(matching, replica, subscribe)
    assert at.count(len(texts)) >= 2
    assert matching.batches == 1
    assert scan(matching, replica, "g101").found == [placement]
    assert "g101" in set().union(*waiting.names)


def test_filter_that_changes_while_a_batch_is_matched_holds_for_later_ones() -> None:
    replica = Replica()
    texts = [f"n <> {n}" for n in range(100)]
    replica.subscribe(*texts)
    placement = replica.send(0, count=500)
    matching, _ = matching_of(replica)
    seen: list[int] = []

    def change() -> None:
        seen.append(len(matching._topics[TOPIC].numbers) if matching._topics else 0)
        if seen.count(len(texts)) == 2:
            known = replica.machine.subscriptions
            command = Resubscribe(known.version, known.version + 1, [Change(TOPIC, "g1", 500, "x")])
            replica.log.add(Kind.COMMANDS, encode_commands([command]))

    run_beside(matching, replica, change)
    assert replica.machine.subscriptions.changed > placement.index
    assert matching._restarts == 0
    assert scan(matching, replica, "g1").found == [placement]


def test_filters_that_keep_coming_wait_until_a_batch_is_matched() -> None:
    replica = Replica()
    texts = [f"n <> {n}" for n in range(100)]
    replica.subscribe(*texts)
    placement = replica.send(0, count=500)
    matching, waiting = matching_of(replica)
    longest, before = 0.0, 0.0

    def subscribe() -> None:
        nonlocal longest, before
        now = trio.current_time()
        longest, before = max(longest, now - before), now
        if not matching.is_behind_filters:
            texts.append(f"n = {len(texts)}")
            replica.subscribe(*texts)

    run_beside(matching, replica, subscribe)
    assert len(texts) >= 100 + matching_module.RESTARTS_MAX
    # The index is prepared in one turn, and the batch matched in the next.
    assert longest <= 3 * TURN_SECONDS
    assert scan(matching, replica, "g1").found == [placement]
    assert waiting.fed == 1
    assert not matching.is_behind_filters


def test_is_behind_filters_for_no_batch_of_a_group_that_another_node_leads() -> None:
    replica = Replica()
    replica.subscribe("n = 1")
    replica.send(0, count=5)
    matching, waiting = matching_of(replica)
    matching._restarts = matching_module.RESTARTS_MAX
    replica.is_leader = False
    matching.want(replica, replica.placements)  # type: ignore[arg-type]
    work(matching)
    assert not matching.is_behind_filters
    assert waiting.fed == 1


def test_masks_of_one_go_are_bounded_by_their_work() -> None:
    def placements(count: int) -> list[Placement]:
        return [Placement(QUEUE, at * count, count, at + 1) for at in range(2_000)]

    budget = MaskBudget()
    few = budget.afford(placements(44))
    assert len(few) == 55
    assert budget.is_spent
    assert budget.afford(placements(44)) == []
    assert len(MaskBudget().afford(placements(65_536))) == 1
    # A mask of a single message costs nothing: it is known.
    assert len(MaskBudget().afford(placements(1))) == 2_000


def test_mask_of_a_single_message_needs_no_reading() -> None:
    replica = Replica()
    replica.subscribe("n = 1")
    placement = replica.send(1, count=1)
    matching, _ = matched(replica)
    found = scan(matching, replica, "g1")
    given: Any = (replica, placement, found.wanted[0], None, MaskBudget())
    mask = matching.mask(*given)
    assert mask is not None
    assert mask.tolist() == [True]


def test_one_look_goes_through_a_bounded_number_of_batches() -> None:
    replica = Replica()
    replica.subscribe("n < 0")
    for n in range(SCAN_MAX + 10):
        replica.send(n * MESSAGES)
    matching, _ = matched(replica)
    assert scan(matching, replica, "g1").reached == SCAN_MAX * MESSAGES


@pytest.mark.parametrize("messages", [[3], [3, 4]])
def test_what_was_passed_over_is_counted(messages: list[int]) -> None:
    matching, _ = matched(Replica())
    for count in messages:
        matching.count_passed(QUEUE, "g", count)
    assert matching.passed(QUEUE, "g") == sum(messages)
    assert matching.passed(QUEUE, "h") == 0


def test_counts_of_passed_messages_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.broker.deliver.matching.COUNTS_MAX", 3)
    matching, _ = matching_of(Replica())
    for n in range(10):
        matching.count_passed(QUEUE, f"group {n}", 1)
        matching.count_passed(QUEUE, "busy", 1)
    assert len(matching._passed) == 3
    # A growing count is kept.
    assert matching.passed(QUEUE, "busy") == 10
