"""Hand-offs in the machine: a commit acknowledges what was popped, or nothing of it happens."""

from collections import Counter
from random import Random

import pytest

from raftmq.batch import encode
from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine.machine import Command, DropQueues, PartitionMachine
from raftmq.machine.producers import Producers
from raftmq.machine.transactions import (
    FENCED_MAX,
    MESSAGES_MAX,
    Begin,
    Input,
    Outcome,
    Transactions,
)
from raftmq.pop.actions import Action
from raftmq.pop.calls import (
    Ask,
    CloseGroups,
    Lose,
    OpenGroup,
    ResetGroup,
    Settle,
    Step,
)
from raftmq.pop.leases import Handed
from raftmq.pop.policy import Mode, Policy
from raftmq.pop.spans import Span, span
from raftmq.results import Changed, Delayed, Result
from raftmq.wire.popping import Settled
from tests.machine.test_transactions import COMMIT, ROLLBACK, Log, reason

TOPIC = 1
QUEUE = TOPIC << 16
OUT = 7
GROUP = 1
ALICE, BOB = 11, 12
LEASE_MS = 100
POLICY = Policy(schedule_ms=(10,), attempts_max=1000, invisible_ms=LEASE_MS)
FENCED = Outcome.FENCED


class PopLog(Log):
    """A log in which consumers pop, and send their results in transactions."""

    def __init__(self, mode: Mode = Mode.POP) -> None:
        super().__init__()
        self.mode = mode
        self.settled: dict[int, int] = {}
        self.open()

    def open(self, number: int = GROUP) -> None:
        self.run(OpenGroup(number, TOPIC, f"g{number}", 1, self.mode, POLICY, [], []))

    def come(self, count: int) -> None:
        """Messages to pop."""
        first = self.machine.ends.get(QUEUE, 0)
        bodies = [b"in %d" % (first + n) for n in range(count)]
        payload = encode(bodies).to_bytes(queue=QUEUE, producer=77, first_sequence=first)
        self.add(Kind.BATCH, payload)

    def pop(self, consumer: int = ALICE, count: int = 1) -> list[Handed]:
        self.run(Ask(GROUP, consumer, count, 0, 0))
        self.twin.pop_groups.take_handed()
        return [each.handed for each in self.machine.pop_groups.take_handed()]

    def settle(self, step: Step, consumer: int = ALICE) -> int:
        sequence = self.settled[consumer] = self.settled.get(consumer, 0) + 1
        (result,) = self.run(Settle(GROUP, consumer, sequence, [step]))
        assert isinstance(result, Changed)
        (value,) = Settled.of(result.value).results
        return value

    def hand_off(self, number: int, *handed: Handed | Input) -> Result:
        inputs = [each if isinstance(each, Input) else input_of(each) for each in handed]
        return self.run(Begin(number, "", "", inputs))[0]

    @property
    def acked(self) -> int:
        return self.machine.pop_groups.attached[GROUP].group.audit()["acked"]


def input_of(handed: Handed, messages: Span | None = None) -> Input:
    base, bits, _ = messages or handed.messages
    content = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
    return Input(GROUP, handed.consumer, handed.token, base, content)


def step(action: Action, handed: Handed, delay_ms: int = -1) -> Step:
    named = input_of(handed)
    return Step(action, named.token, named.base, named.bits, delay_ms)


def began(count: int = 3) -> tuple[PopLog, Handed]:
    """A hand-off of this many messages is open, and has sent one."""
    log = PopLog()
    log.come(count)
    (handed,) = log.pop(count=count)
    assert log.hand_off(5, handed) == Changed()
    log.half(5, [b"out"])
    return log, handed


def test_commit_acknowledges_and_lets_messages_be_seen_in_one_record() -> None:
    log, _ = began(3)
    log.restore_twin()
    assert log.acked == 0
    before = log.machine.applied
    assert log.end(5) == Changed([COMMIT, 1, True])
    assert (log.machine.applied - before, log.acked) == (1, 3)
    log.tick(log.now + 10 * LEASE_MS)
    log.release_all()
    assert log.placed[OUT] == [b"out"]
    assert log.pop(BOB) == []


@pytest.mark.parametrize("first", [COMMIT, FENCED, ROLLBACK])
def test_end_that_is_said_again_is_told_the_first_outcome(first: Outcome) -> None:
    log, _ = began()
    if first is FENCED:
        log.now += LEASE_MS
    log.end(5, ROLLBACK if first is ROLLBACK else COMMIT)
    log.restore_twin()
    for again in (COMMIT, ROLLBACK):
        assert log.end(5, again) == Changed([first, 0, False])


def test_commit_after_the_lease_is_a_rollback_and_the_input_comes_again() -> None:
    log, handed = began(2)
    log.now = handed.deadline
    # The record of the commit is the one in which the lease runs out.
    assert log.end(5) == Changed([FENCED, 0, False])
    log.tick(log.now + 10)
    log.release_all()
    assert OUT not in log.placed
    (again,) = log.pop(BOB, 5)
    assert again.messages == Span(0, 0b11, 2)


def test_lease_that_runs_out_ends_its_hand_off_without_being_asked() -> None:
    log, handed = began()
    assert log.machine.next_timer == handed.deadline
    log.tick(handed.deadline - 1)
    assert 5 in log.machine.transactions.open
    log.tick(handed.deadline)
    assert log.machine.transactions.open == {}
    assert log.machine.delays.count == 0
    assert log.machine.delays.floor is None
    assert reason(log.half(5, [b"late"])) is Reason.FENCED
    assert reason(log.hand_off(5, handed)) is Reason.FENCED


def test_extended_lease_keeps_its_hand_off_open() -> None:
    log, handed = began()
    log.settle(Step(Action.EXTEND, handed.token, delay_ms=5 * LEASE_MS))
    log.tick(handed.deadline + 1)
    assert log.machine.transactions.next_timer == log.now - LEASE_MS - 1 + 5 * LEASE_MS
    log.restore_twin()
    assert log.end(5) == Changed([COMMIT, 1, True])


@pytest.mark.parametrize("action", [Action.ACK, Action.NACK, Action.REJECT, Action.GIVE_BACK])
def test_input_that_was_settled_in_another_way_fences_its_hand_off(action: Action) -> None:
    log, handed = began(3)
    one = Handed(ALICE, handed.token, QUEUE, Span(1, 1), 0)
    assert log.settle(step(action, one, 0 if action is Action.NACK else -1)) == 1
    acked = log.acked
    assert log.end(5) == Changed([FENCED, 1, True])
    log.release_all()
    assert OUT not in log.placed
    # The other messages stay with the same consumer.
    assert log.acked == acked
    assert log.settle(step(Action.ACK, handed)) == 2


def test_two_hand_offs_of_one_message_commit_once() -> None:
    log, handed = began(1)
    assert log.hand_off(6, handed) == Changed()
    log.half(6, [b"other"])
    assert log.end(6) == Changed([COMMIT, 1, True])
    assert log.end(5) == Changed([FENCED, 1, True])
    log.release_all()
    assert log.placed[OUT] == [b"other"]


def test_hand_off_may_take_some_messages_of_a_lease_and_several_leases() -> None:
    log = PopLog()
    log.come(4)
    (first,) = log.pop(ALICE, 3)
    (second,) = log.pop(BOB, 1)
    middle = input_of(first, Span(1, 1))
    assert log.hand_off(5, middle, second) == Changed()
    assert log.machine.transactions.open[5].input_count == 2
    assert log.end(5) == Changed([COMMIT, 0, True])
    assert log.acked == 2
    assert log.settle(step(Action.ACK, first)) == 2


def test_rollback_leaves_inputs_in_hand() -> None:
    log, handed = began(2)
    assert log.end(5, ROLLBACK) == Changed([ROLLBACK, 1, True])
    assert log.machine.transactions.next_timer is None
    assert log.settle(step(Action.ACK, handed)) == 2


def test_hand_off_of_what_is_not_in_hand_does_not_begin() -> None:
    log, handed = began(1)
    stranger = Input(GROUP, BOB, handed.token, 0, b"\x01")
    for inputs in (
        [stranger],
        [input_of(handed, Span(0, 0b11))],
        [input_of(handed), stranger],
        [Input(GROUP, ALICE, handed.token + 1, 0, b"\x01")],
        [Input(GROUP + 1, ALICE, handed.token, 0, b"\x01")],
        [Input(GROUP, ALICE, handed.token, -1, b"\x03")],
        [Input(GROUP, ALICE, handed.token, 1 << 70, b"\x01")],
    ):
        assert reason(log.hand_off(6, *inputs)) is Reason.FENCED
    assert list(log.machine.transactions.open) == [5]


def test_malformed_hand_off_is_refused() -> None:
    log, handed = began(1)
    nothing = Input(GROUP, ALICE, handed.token, 0, b"\x00")
    assert reason(log.hand_off(6, nothing)) is Reason.BAD_ARGUMENT
    assert reason(log.hand_off(6)) is Reason.BAD_ARGUMENT
    both = Begin(6, "shop", "", [input_of(handed)])
    assert reason(log.run(both)[0]) is Reason.BAD_ARGUMENT
    many = Input(GROUP, ALICE, handed.token, 0, b"\xff" * (MESSAGES_MAX // 8 + 1))
    assert reason(log.hand_off(6, many)) is Reason.TOO_LARGE
    assert reason(log.end(5, FENCED)) is Reason.BAD_ARGUMENT


def test_memory_for_inputs_is_bounded_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.machine.transactions.INPUT_BYTES_MAX", 250)
    log, handed = began(1)
    assert log.hand_off(6, handed) == Changed()
    assert reason(log.hand_off(7, handed)) is Reason.TOO_MANY_TRANSACTIONS
    log.restore_twin()
    log.end(6, ROLLBACK)
    assert log.hand_off(7, handed) == Changed()


def test_many_hand_offs_that_run_out_at_once_go_in_portions() -> None:
    log = PopLog()
    log.come(1)
    (handed,) = log.pop()
    share = FENCED_MAX // 4
    for number in range(1, 9):
        log.hand_off(number, handed)
        log.half(number, [b"%d %d" % (number, n) for n in range(share)])
    log.tick(handed.deadline)
    left = len(log.machine.transactions.open)
    assert 0 < left < 8
    log.restore_twin()
    assert log.machine.next_timer == handed.deadline
    log.tick(log.now)
    log.tick(log.now)
    assert log.machine.transactions.open == {}
    assert log.machine.delays.count == 0


@pytest.mark.parametrize("what", ["group", "topic", "reset", "retention"])
def test_input_that_is_gone_fences_its_hand_off(what: str) -> None:
    log, _ = began(2)
    gone: dict[str, Command] = {
        "group": CloseGroups([GROUP]),
        "topic": DropQueues([QUEUE]),
        "reset": ResetGroup(GROUP, [QUEUE], [0]),
        "retention": Lose([QUEUE], [1]),
    }
    log.run(gone[what])
    log.restore_twin()
    assert log.end(5) == Changed([FENCED, 1, True])
    log.release_all()
    assert OUT not in log.placed
    assert log.machine.transactions.next_timer is None


def test_hand_off_of_an_ordered_group_lets_the_next_message_go() -> None:
    log = PopLog()
    ordered = Policy((10,), 1000, LEASE_MS, POLICY.order)
    log.run(OpenGroup(2, TOPIC, "g2", 1, Mode.ORDERED, ordered, [], []))
    first = log.machine.ends.get(QUEUE, 0)
    batch = encode([b"a", b"b"], keys=["k", "k"])
    log.add(Kind.BATCH, batch.to_bytes(queue=QUEUE, producer=78, first_sequence=first))
    group = log.machine.pop_groups.attached[2].group
    twin = log.twin.pop_groups.attached[2].group
    for each in (group, twin):
        each.feed(QUEUE, 0, 2, mask=None, keys=b"\x01\0\0\0" * 2)
    log.run(Ask(2, ALICE, 5, 1000, 0))
    log.run(Ask(2, BOB, 5, 1000, 0))
    (one,) = [each.handed for each in log.machine.pop_groups.take_handed() if each.number == 2]
    assert one.messages == Span(0, 1, 1)
    ours = Input(2, ALICE, one.token, 0, b"\x01")
    assert log.hand_off(5, ours) == Changed()
    assert log.end(5) == Changed([COMMIT, 0, True])
    (other,) = [each.handed for each in log.machine.pop_groups.take_handed() if each.number == 2]
    assert (other.consumer, other.messages) == (BOB, Span(1, 1, 1))


def test_state_of_before_there_were_hand_offs_is_read() -> None:
    log = Log()
    log.begin(5, "order 17")
    log.half(5, [b"a"])
    opened, ended = log.machine.transactions.dump()
    old = [[row[:5] for row in opened], ended]
    other = PartitionMachine()
    loaded = Transactions(other.delays, other.pop_groups, Producers(1))
    loaded.load(old)
    assert loaded.dump() == [opened, ended]


class Play:
    """Consumers hand off, settle, hang and come back by chance, against a plain model of who has
    what."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"hand-off {seed}")
        self.log = PopLog()
        self.leases: dict[int, tuple[int, set[int], int]] = {}
        """Token → consumer, offsets, deadline."""
        self.handed: list[Handed] = []
        self.open: dict[int, tuple[list[Input], list[bytes]]] = {}
        self.ended: dict[int, Outcome] = {}
        self.made: dict[int, list[bytes]] = {}
        """Offset of an input → what was made of it and can be seen."""
        self.settled: set[int] = set()
        self.outcomes = Counter[Outcome]()

    def play(self, steps: int) -> None:
        """Do this many things, and look at the state in the end."""
        for _ in range(steps):
            luck = self.rng.random()
            if luck < 0.25:
                self.pop()
            elif luck < 0.45:
                self.begin()
            elif luck < 0.55:
                self.send()
            elif luck < 0.7:
                self.end()
            elif luck < 0.85:
                self.settle()
            elif luck < 0.92:
                self.log.tick(self.log.now + self.rng.choice((1, 20, 99, 100, 500)))
            elif luck < 0.94:
                self.reset()
            elif luck < 0.97:
                self.log.release_all()
            else:
                assert self.log.twin.snapshot() == self.log.machine.snapshot()
                self.log.restore_twin()
            self.look()
        self.finish()

    def held(self, each: Input) -> bool:
        consumer, offsets, deadline = self.leases[each.token]
        is_running = consumer == each.consumer and deadline > self.log.now
        return is_running and offsets >= offsets_of(each)

    def pop(self) -> None:
        if self.rng.random() < 0.5:
            self.log.come(self.rng.randint(1, 4))
        for each in self.log.pop(self.rng.choice((ALICE, BOB)), self.rng.randint(1, 4)):
            offsets = set(each.messages.offsets())
            assert not offsets & self.settled, "what was acknowledged came again"
            self.leases[each.token] = each.consumer, offsets, each.deadline
            self.handed.append(each)

    def begin(self) -> None:
        inputs = []
        for each in self.handed and self.rng.choices(self.handed[-4:], k=self.rng.randint(1, 2)):
            base, bits, _ = each.messages
            inputs.append(input_of(each, span(base, bits & self.rng.getrandbits(4) or bits)))
        if not inputs:
            return
        number = len(self.open) + len(self.ended) + 1
        result = self.log.hand_off(number, *inputs)
        if all(map(self.held, inputs)):
            assert result == Changed()
            self.open[number] = inputs, []
        else:
            assert reason(result) is Reason.FENCED
            assert self.log.end(number, ROLLBACK) == Changed([ROLLBACK, 0, True])
            self.ended[number] = ROLLBACK

    def send(self) -> None:
        for number in self.rng.sample(sorted(self.open), min(2, len(self.open))):
            bodies = self.open[number][1]
            new = [b"%d of %d" % (len(bodies) + n, number) for n in range(self.rng.randint(1, 2))]
            assert isinstance(self.log.half(number, new), Delayed)
            bodies += new

    def end(self) -> None:
        known = sorted({*self.open, *sorted(self.ended)[-2:]})
        if not known:
            return
        number, outcome = self.rng.choice(known), self.rng.choice((COMMIT, COMMIT, ROLLBACK))
        result = self.log.end(number, outcome)
        if number in self.ended:
            assert result == Changed([self.ended[number], 0, False])
            return
        inputs, bodies = self.open.pop(number)
        if outcome is COMMIT and not all(map(self.held, inputs)):
            outcome = FENCED
        assert result == Changed([outcome, len(bodies), True])
        self.ended[number] = outcome
        self.outcomes[outcome] += 1
        for each in inputs if outcome is COMMIT else []:
            self.leases[each.token][1].difference_update(offsets_of(each))
            for offset in offsets_of(each):
                assert self.made.setdefault(offset, bodies) is bodies, "something was made twice"
                self.settled.add(offset)

    def settle(self) -> None:
        if not self.handed:
            return
        each, action = self.rng.choice(self.handed[-4:]), self.rng.choice([*Action, Action.EXTEND])
        length = self.rng.choice((1, 30, 300))
        value = self.log.settle(step(action, each, length), each.consumer)
        _, offsets, deadline = self.leases[each.token]
        if not offsets or deadline <= self.log.now:
            assert value == -1
        elif action is Action.EXTEND:
            self.leases[each.token] = each.consumer, offsets, self.log.now + length
        else:
            assert value == len(offsets)
            self.settled |= offsets if action is Action.ACK else set()
            offsets.clear()

    def reset(self) -> None:
        end = self.log.machine.ends.get(QUEUE, 0)
        self.log.run(ResetGroup(GROUP, [QUEUE], [end]))
        for _, offsets, _ in self.leases.values():
            offsets.clear()

    def look(self) -> None:
        """A transaction that ended by itself had lost an input; a visible message was committed."""
        for number in self.open.keys() - self.log.machine.transactions.open.keys():
            inputs, _ = self.open.pop(number)
            assert not all(map(self.held, inputs)), "it ended, and all was in hand"
            self.ended[number] = FENCED
            self.outcomes[FENCED] += 1
        for body in self.log.placed.get(OUT, []):
            assert self.ended[int(body.split()[-1])] is COMMIT

    def finish(self) -> None:
        self.log.tick(self.log.now + 1000)
        self.look()
        assert not self.open, "a hand-off outlives its leases"
        self.log.release_all()
        self.look()
        wanted = sorted({body for bodies in self.made.values() for body in bodies})
        assert sorted(self.log.placed.get(OUT, [])) == wanted
        assert self.log.machine.delays.count == 0
        assert self.log.twin.snapshot() == self.log.machine.snapshot()


def offsets_of(each: Input) -> set[int]:
    messages = span(each.base, int.from_bytes(each.bits, "little"))
    assert messages is not None
    return set(messages.offsets())


def test_random_hand_offs_make_one_output_of_each_input_or_none() -> None:
    outcomes = Counter[Outcome]()
    for seed in range(30):
        play = Play(seed)
        play.play(150)
        outcomes += play.outcomes
    assert all(outcomes[each] > 50 for each in Outcome), outcomes
