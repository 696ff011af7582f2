"""Claimed sessions: of all attempts at a piece of work, each message is stored once.

The model plays tasks that die, come back as zombies, and are overtaken by later work. It knows in a
dictionary what the machine keeps in sessions and runs; planted bugs make the two disagree.
"""

from random import Random
from typing import Any

import pytest

from raftmq.errors import Reason
from raftmq.log.record import Kind
from raftmq.machine.commands import encode_commands
from raftmq.machine.machine import Limits, PartitionMachine
from raftmq.machine.producers import CLAIMED, ClaimedSession, ClaimSessions, Producers
from raftmq.results import Appended, Changed, Refused, Result

from .test_machine import Log, reason


def claim(log: Log, label: int, *queues: int, producer: int = 5, now: int = 0) -> Result:
    command = ClaimSessions(producer, list(queues) or [7], label)
    (result,) = log.add(Kind.COMMANDS, encode_commands([command]), now=now)
    return result


def claimed(log: Log, label: int, queue: int = 7, *, now: int = 0) -> ClaimedSession:
    result = claim(log, label, queue, now=now)
    assert isinstance(result, Changed), result
    return ClaimedSession(*result.value[0])


def test_claim_of_a_new_producer_finds_nothing_stored() -> None:
    session = claimed(Log(), 1)
    assert session.epoch >= CLAIMED
    assert (session.next_sequence, session.origin) == (0, -1)


def test_claim_of_the_same_label_tells_what_is_stored_and_goes_on_there() -> None:
    log = Log()
    log.send(0, 4, producer=9)
    first = claimed(log, 1)
    log.send(0, 3, producer=5, epoch=first.epoch)
    log.send(0, 1, producer=8)
    log.send(3, 2, producer=5, epoch=first.epoch)
    second = claimed(log, 1)
    assert (second.next_sequence, second.origin) == (5, 4)
    assert log.send(5, producer=5, epoch=second.epoch) == Appended(7, 10, 1, 0, duplicate=False)
    assert claimed(log, 1)[1:3] == (6, 4)


def test_claim_fences_every_earlier_attempt() -> None:
    log = Log()
    epochs = [claimed(log, 1).epoch for _ in range(3)]
    assert sorted(set(epochs)) == epochs
    for epoch in epochs[:2]:
        assert reason(log.send(0, producer=5, epoch=epoch)) is Reason.FENCED
    assert isinstance(log.send(0, producer=5, epoch=epochs[2]), Appended)


def test_higher_label_begins_at_zero_and_a_lower_one_is_refused() -> None:
    log = Log()
    log.send(0, 3, producer=5, epoch=claimed(log, 1).epoch)
    later = claimed(log, 2)
    assert later[1:3] == (0, -1)
    assert reason(claim(log, 1)) is Reason.FENCED
    assert log.send(0, producer=5, epoch=later.epoch) == Appended(7, 3, 1, 0, duplicate=False)
    assert claimed(log, 2)[1:3] == (1, 3)


def test_work_in_parts_keeps_their_number_and_the_highest_that_was_begun() -> None:
    def part(label: int, part: int, parts: int) -> Result:
        command = ClaimSessions(5, [7], label, part, parts)
        (result,) = log.add(Kind.COMMANDS, encode_commands([command]))
        log.machine = PartitionMachine.restore(log.machine.snapshot())
        return result

    def highest(result: Result) -> int:
        assert isinstance(result, Changed), result
        return ClaimedSession(*result.value[0]).part

    log = Log()
    assert [highest(part(1, p, 0)) for p in (2, 4, 1, 4)] == [2, 4, 4, 4]
    assert reason(part(1, 1, 3)) is Reason.OTHER_PARTS
    assert highest(part(1, 1, 4)) == 4
    assert reason(part(1, 5, 0)) is Reason.OTHER_PARTS
    assert reason(part(1, 1, 5)) is Reason.OTHER_PARTS
    assert reason(part(1, -1, 0)) is reason(part(1, 1, -4)) is Reason.BAD_ARGUMENT
    # A new label is cut in its own way, and the old one is over.
    assert highest(part(2, 1, 2)) == 1
    assert reason(part(1, 1, 4)) is Reason.FENCED


def test_refused_claim_changes_no_queue() -> None:
    log = Log()
    first = claimed(log, 1, queue=8)
    claimed(log, 2, queue=9)
    assert reason(claim(log, 1, 7, 8, 9)) is Reason.FENCED
    assert isinstance(log.send(0, queue=8, producer=5, epoch=first.epoch), Appended)


def test_answer_that_was_lost_is_found_again_under_the_same_claim() -> None:
    log = Log()
    epoch = claimed(log, 1).epoch
    log.send(0, 3, producer=5, epoch=epoch)
    assert log.send(0, 3, producer=5, epoch=epoch) == Appended(7, 0, 3, 0, duplicate=True)


def test_ordinary_producer_is_taken_over_by_a_claim_of_its_id() -> None:
    log = Log()
    log.send(0, 3, producer=5, epoch=6)
    assert claimed(log, 1)[1:3] == (0, -1)
    assert reason(log.send(3, producer=5, epoch=6)) is Reason.FENCED


def test_batch_whose_claimed_session_was_forgotten_begins_none() -> None:
    log = Log(PartitionMachine(Limits(session_idle_ms_max=10)))
    epoch = claimed(log, 1).epoch
    log.send(0, producer=9, now=100)
    assert reason(log.send(0, producer=5, epoch=epoch, now=101)) is Reason.UNKNOWN_PRODUCER
    assert claimed(log, 1, now=102).epoch > epoch


def test_claim_keeps_a_session_from_being_forgotten() -> None:
    log = Log(PartitionMachine(Limits(session_idle_ms_max=10)))
    log.send(0, 2, producer=5, epoch=claimed(log, 1).epoch)
    assert claimed(log, 1, now=10).next_sequence == 2
    assert claimed(log, 1, now=20).next_sequence == 2
    assert claimed(log, 1, now=31).next_sequence == 0


def test_sessions_stay_bounded_by_claims() -> None:
    log = Log(PartitionMachine(Limits(sessions_max=3)))
    log.send(0, producer=1)
    claim(log, 1, 1, 2, 3)
    assert reason(log.send(1, producer=1)) is Reason.UNKNOWN_PRODUCER
    assert reason(claim(log, 1, 1, 2, 3, 4)) is Reason.BAD_ARGUMENT


@pytest.mark.parametrize(
    "command",
    [
        ClaimSessions(0, [1], 1),
        ClaimSessions(1 << 63, [1], 1),
        ClaimSessions(1, [], 1),
        ClaimSessions(1, [1, 1], 1),
        ClaimSessions(1, [1], 0),
        ClaimSessions(1, [1], 1 << 63),
    ],
)
def test_malformed_claim_is_refused(command: ClaimSessions) -> None:
    (result,) = Log().add(Kind.COMMANDS, encode_commands([command]))
    assert reason(result) is Reason.BAD_ARGUMENT


class Attempt:
    """One try at writing what a label stands for."""

    def __init__(self, label: int, sessions: dict[int, ClaimedSession]) -> None:
        self.label = label
        self.epochs = {queue: session.epoch for queue, session in sessions.items()}
        self.next = {queue: session.next_sequence for queue, session in sessions.items()}


class Model:
    """The expected outcome of tasks that claim, write, die, and write on after they died."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.log = Log()
        self.label = 0
        # Queue → where the messages of the highest label went, and the attempt that may write.
        self.stored: dict[int, list[int]] = {1: [], 2: []}
        self.owner: dict[int, Attempt | None] = {1: None, 2: None}
        self.attempts: list[Attempt] = []

    def step(self) -> None:
        match self.random.randrange(12):
            case 0 | 1:
                self.claim(max(1, self.label - self.random.randrange(2)))
            case 2:
                self.claim(self.label + 1)
            case 3:
                self.log.send(
                    0, queue=self.random.randint(1, 2), producer=1000 + len(self.log.records)
                )
            case 4:
                self.log.machine = PartitionMachine.restore(self.log.machine.snapshot())
            case _ if self.attempts:
                self.write(self.random.choice(self.attempts[-3:]))

    def claim(self, label: int) -> None:
        result = claim(self.log, label, 1, 2)
        if label < self.label:
            assert reason(result) is Reason.FENCED
            return
        if label > self.label:
            self.label, self.stored = label, {1: [], 2: []}
        assert isinstance(result, Changed)
        sessions = {q: ClaimedSession(*s) for q, s in zip((1, 2), result.value, strict=True)}
        for queue, session in sessions.items():
            stored = self.stored[queue]
            assert session.next_sequence == len(stored)
            assert session.origin == (stored[0] if stored else -1)
        attempt = Attempt(label, sessions)
        self.attempts.append(attempt)
        self.owner = {1: attempt, 2: attempt}

    def write(self, attempt: Attempt) -> None:
        queue, count = self.random.randint(1, 2), self.random.randint(1, 3)
        first = attempt.next[queue]
        result = self.log.send(first, count, queue=queue, producer=5, epoch=attempt.epochs[queue])
        if self.owner[queue] is not attempt:
            assert isinstance(result, Refused), "a zombie has written"
            return
        assert isinstance(result, Appended)
        assert not result.duplicate
        assert first == len(self.stored[queue])
        self.stored[queue] += range(result.base_offset, result.base_offset + count)
        attempt.next[queue] += count


def play_all() -> None:
    for seed in range(20):
        play(seed)


def play(seed: int) -> None:
    model = Model(seed)
    for _ in range(120):
        model.step()


@pytest.mark.parametrize("seed", range(20))
def test_claims_do_what_the_model_does(seed: int) -> None:
    play(seed)


def keep_the_epoch(self: Producers, command: ClaimSessions, *, index: int, now: int) -> Any:
    known = [self._sessions.get((command.producer, queue)) for queue in command.queues]
    epochs = [CLAIMED | 1 if session is None else session.epoch for session in known]
    found = REAL_CLAIM(self, command, index=index, now=now)
    if isinstance(found, Refused):
        return found
    for queue, epoch in zip(command.queues, epochs, strict=True):
        self._sessions[command.producer, queue].epoch = epoch
    return [each._replace(epoch=epoch) for each, epoch in zip(found, epochs, strict=True)]


def forget_what_is_stored(self: Producers, command: ClaimSessions, *, index: int, now: int) -> Any:
    self.forget(command.producer, set(command.queues))
    return REAL_CLAIM(self, command, index=index, now=now)


def never_begin_again(self: Producers, command: ClaimSessions, *, index: int, now: int) -> Any:
    for queue in command.queues:
        session = self._sessions.get((command.producer, queue))
        if session is not None:
            session.label = max(session.label, command.label)
    return REAL_CLAIM(self, command, index=index, now=now)


def take_the_origin_from_runs(
    self: Producers, command: ClaimSessions, *, index: int, now: int
) -> Any:
    found = REAL_CLAIM(self, command, index=index, now=now)
    if isinstance(found, Refused):
        return found
    sessions = [self._sessions[command.producer, queue] for queue in command.queues]
    return [
        each._replace(origin=session.bases[-1] if session.bases else -1)
        for each, session in zip(found, sessions, strict=True)
    ]


def dump_without_labels(self: Producers) -> list[list[Any]]:
    return [row[:7] for row in REAL_DUMP(self)]


REAL_CLAIM, REAL_DUMP = Producers.claim, Producers.dump


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("claim", keep_the_epoch),
        ("claim", forget_what_is_stored),
        ("claim", never_begin_again),
        ("claim", take_the_origin_from_runs),
        ("_claim_refusal", lambda *_: None),
        ("dump", dump_without_labels),
    ],
)
def test_model_notices_planted_bugs(monkeypatch: pytest.MonkeyPatch, name: str, bug: Any) -> None:
    monkeypatch.setattr(Producers, name, bug)
    with pytest.raises(AssertionError):
        play_all()
