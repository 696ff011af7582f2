"""Histories of claims, hand-offs, moved groups, broadcast and topics, each with one anomaly."""

from collections.abc import Callable

from raftmq.checkers import (
    History,
    Recorder,
    Report,
    check_claims,
    check_hand_off,
    check_instances,
    check_resets,
    check_topic_lives,
)
from raftmq.checkers.objects.claims import LONG_MS
from raftmq.checkers.pop.calls import Got, Named, begin_pop, begin_settling, end_pop, end_settling

MS = 1_000_000


class FlowScript:
    """A recorder of operations that are over as soon as they begin, a millisecond each."""

    def __init__(self) -> None:
        self.now = 0
        self.recorder = Recorder(lambda: self.now * MS)

    def history(self) -> History:
        return self.recorder.history()

    def claimed(self, number: int, *, ttl: int = LONG_MS, granted: bool = True) -> None:
        operation = self.recorder.invoke(number, "claim", "job", (number, ttl))
        self.recorder.ok(operation, value=(number, int(granted)))
        self.now += 1

    def given_up(self, number: int, *, ours: bool = True) -> None:
        operation = self.recorder.invoke(number, "give_up", "job", number)
        self.recorder.ok(operation, value=(number, int(ours)))
        self.now += 1

    def sent(self, value: int, offset: int, queue: str = "t/0") -> None:
        operation = self.recorder.invoke(1, "send", queue, value)
        self.recorder.ok(operation, offset=offset)
        self.now += 1

    def handed_off(self, value: int, name: int, *, done: bool = True) -> None:
        operation = self.recorder.invoke(2, "hand_off", "t/0", (value, name))
        if done:
            self.recorder.ok(operation)
        else:
            self.recorder.fail(operation)
        self.now += 1

    def made(self, *rows: tuple[int, int]) -> None:
        operation = self.recorder.invoke(3, "made")
        found = [("out/0", row, offset) for offset, row in enumerate(rows)]
        self.recorder.ok_many(operation, found)

    def reset(self, target: int, group: str = "r", *, done: bool = True) -> None:
        operation = self.recorder.invoke(4, "reset", f"{group} t/0", target)
        if done:
            self.recorder.ok(operation)
        else:
            self.recorder.fail(operation)
        self.now += 1

    def cloned(self, target: int) -> None:
        operation = self.recorder.invoke(4, "reset")
        self.recorder.ok_many(operation, [("r1 t/0", target, None)])
        self.now += 1

    def popped(self, offset: int, token: int, group: str = "r") -> None:
        operation = begin_pop(self.recorder, 5, group)
        end_pop(self.recorder, operation, group, [Got("t/0", offset, offset, token, 1, 1000)])
        self.now += 1

    def acked(self, offset: int, token: int, result: int = 1, group: str = "r") -> None:
        named = Named("t/0", offset, token)
        operation = begin_settling(self.recorder, 5, "ack", group, [named])
        end_settling(self.recorder, operation, group, [(named, result)])
        self.now += 1

    def read(self, process: int, *offsets: int) -> None:
        operation = self.recorder.invoke(process, "poll", value="b@one")
        self.recorder.ok_many(operation, [("t/0", offset, offset) for offset in offsets])
        self.now += 1

    def committed(self, process: int, offset: int) -> None:
        operation = self.recorder.invoke(process, "commit_offset")
        self.recorder.ok_many(operation, [("b@one t/0", offset, None)])
        self.now += 1

    def created(self, life: int, *, is_answered: bool = True) -> None:
        operation = self.recorder.invoke(6, "create_topic", "x", life)
        (self.recorder.ok if is_answered else self.recorder.unknown)(operation)

    def looked(self, life: int, *, is_there: bool) -> None:
        operation = self.recorder.invoke(6, "look_topic", "x", life)
        (self.recorder.ok if is_there else self.recorder.fail)(operation)

    def put(self, message: int, life: int, *, late: bool = False) -> None:
        function = "put_late" if late else "put"
        operation = self.recorder.invoke(6, function, "x", (message, life))
        self.recorder.ok(operation)

    def taken(self, message: int, life: int) -> None:
        operation = self.recorder.invoke(7, "take", "x", life)
        self.recorder.ok_many(operation, [("x", (message, life), None)])


Plant = Callable[[FlowScript], None]
Check = Callable[[History], Report]


def claims(history: History) -> Report:
    return check_claims(history, clock_ms_max=0)


def hand_off(history: History) -> Report:
    return check_hand_off(history, topic="t", is_drained=True)


def resets(history: History) -> Report:
    return check_resets(history, clones=["r1"], is_drained=True)


def instances(history: History) -> Report:
    return check_instances(history, is_drained=True)


# Right histories


def right_claims(script: FlowScript) -> None:
    script.claimed(1)
    script.claimed(2, granted=False)
    script.given_up(1)
    script.claimed(3, ttl=100)
    script.now += 100
    script.claimed(4)
    script.given_up(1, ours=False)


def right_hand_off(script: FlowScript) -> None:
    script.sent(0, 0)
    script.sent(1, 1)
    script.handed_off(0, 100, done=False)
    script.handed_off(0, 101)
    script.handed_off(1, 102)
    script.made((0, 101), (1, 102))


def right_resets(script: FlowScript) -> None:
    script.sent(0, 0)
    script.sent(1, 1)
    script.popped(0, 10)
    script.acked(0, 10)
    script.popped(1, 11)
    script.cloned(1)
    script.reset(0)
    script.acked(1, 11, -1)
    for offset in (0, 1):
        script.popped(offset, 20 + offset)
        script.acked(offset, 20 + offset)
    script.popped(1, 31, "r1")
    script.acked(1, 31, group="r1")


def right_instances(script: FlowScript) -> None:
    for value in range(4):
        script.sent(value, value)
    script.read(11, 0, 1)
    script.committed(11, 1)
    # Another life goes on at the commit, and is moved back.
    script.read(12, 1, 2)
    script.reset(0, "b@one")
    script.read(12, 0, 1, 2, 3)


def right_commit_that_sends_nothing(script: FlowScript) -> None:
    for value in range(2):
        script.sent(value, value)
    script.read(11, 0, 1)
    script.committed(11, 2)
    script.reset(0, "b@one")
    # The place stands already, as far as the instance knows, so nothing is sent.
    script.committed(11, 2)
    script.read(11, 0, 1)


def right_lives(script: FlowScript) -> None:
    script.put(1, 1)
    script.taken(1, 1)
    script.put(2, 1, late=True)
    script.put(3, 2)
    script.taken(3, 2)


def right_topics(script: FlowScript) -> None:
    script.looked(1, is_there=False)
    script.created(1)
    script.looked(2, is_there=False)
    # The creation of a process that died comes late.
    script.created(2, is_answered=False)
    script.looked(3, is_there=True)


RIGHT: list[tuple[Plant, Check]] = [
    (right_claims, claims),
    (right_hand_off, hand_off),
    (right_resets, resets),
    (right_instances, instances),
    (right_commit_that_sends_nothing, instances),
    (right_lives, check_topic_lives),
    (right_topics, check_topic_lives),
]

# Wrong ones


def claimed_twice(script: FlowScript) -> None:
    script.claimed(1)
    script.claimed(2)


def claimed_while_a_short_one_runs(script: FlowScript) -> None:
    script.claimed(1, ttl=100)
    script.now += 50
    script.claimed(2)


def claim_given_up_by_another(script: FlowScript) -> None:
    script.claimed(1)
    script.given_up(1)
    script.claimed(2)
    script.given_up(1)
    script.claimed(3)


def claim_that_runs_is_said_to_be_over(script: FlowScript) -> None:
    script.claimed(1)
    script.given_up(1, ours=False)


def made_twice(script: FlowScript) -> None:
    right_hand_off(script)
    script.handed_off(1, 103)
    script.made((0, 101), (1, 102), (1, 103))


def made_after_a_rollback(script: FlowScript) -> None:
    script.sent(0, 0)
    script.handed_off(0, 100, done=False)
    script.made((0, 100))


def made_by_nobody(script: FlowScript) -> None:
    script.sent(0, 0)
    script.made((0, 100))


def output_lost(script: FlowScript) -> None:
    right_hand_off(script)
    script.handed_off(1, 105)


def input_lost(script: FlowScript) -> None:
    script.sent(2, 2)
    right_hand_off(script)


def message_lost_after_a_reset(script: FlowScript) -> None:
    script.sent(0, 0)
    script.popped(0, 10)
    script.acked(0, 10)
    script.reset(0)


def old_token_settles(script: FlowScript) -> None:
    script.sent(0, 0)
    script.popped(0, 10)
    script.reset(0)
    script.acked(0, 10)


def clone_begins_before_its_place(script: FlowScript) -> None:
    script.cloned(1)
    script.popped(0, 10, "r1")


def instance_skips(script: FlowScript) -> None:
    script.read(11, 0)
    script.read(11, 2)


def new_life_skips(script: FlowScript) -> None:
    script.read(11, 0)
    script.read(12, 2)


def instance_goes_back(script: FlowScript) -> None:
    script.read(11, 0, 1)
    script.committed(11, 2)
    script.read(12, 0)


def instance_goes_back_before_a_reset(script: FlowScript) -> None:
    instance_goes_back(script)
    script.reset(0, "b@one")
    script.read(12, 0, 1)


def instance_goes_back_after_a_reset_that_was_refused(script: FlowScript) -> None:
    script.reset(0, "b@one", done=False)
    instance_goes_back(script)


def instance_goes_back_to_a_reset_of_long_ago(script: FlowScript) -> None:
    script.read(11, 0)
    script.reset(0, "b@one")
    instance_goes_back(script)


def instance_skips_to_a_reset_of_long_ago(script: FlowScript) -> None:
    script.read(11, 0, 1, 2, 3)
    script.reset(3, "b@one")
    script.read(11, 3)
    script.reset(0, "b@one")
    script.read(11, 0)
    script.committed(11, 1)
    script.read(11, 3)


def instance_never_gets_it(script: FlowScript) -> None:
    script.sent(0, 0)
    script.sent(1, 1)
    script.read(11, 0)


def message_of_the_former_topic(script: FlowScript) -> None:
    script.put(1, 1)
    script.taken(1, 2)


def message_after_the_deletion(script: FlowScript) -> None:
    script.put(1, 1, late=True)
    script.taken(1, 1)


def message_of_nobody(script: FlowScript) -> None:
    script.taken(1, 1)


def topic_that_comes_back(script: FlowScript) -> None:
    script.created(1)
    script.looked(2, is_there=True)


PLANTS: list[tuple[str, Plant, Check]] = [
    ("claims-overlap", claimed_twice, claims),
    ("claims-overlap", claimed_while_a_short_one_runs, claims),
    ("claims-overlap", claim_given_up_by_another, claims),
    ("claim-disowned", claim_that_runs_is_said_to_be_over, claims),
    ("made-twice", made_twice, hand_off),
    ("made-undone", made_after_a_rollback, hand_off),
    ("made-undone", made_by_nobody, hand_off),
    ("made-lost", output_lost, hand_off),
    ("input-lost", input_lost, hand_off),
    ("reset-lost", message_lost_after_a_reset, resets),
    ("reset-unfenced", old_token_settles, resets),
    ("clone-early", clone_begins_before_its_place, resets),
    ("instance-skipped", instance_skips, instances),
    ("instance-skipped", new_life_skips, instances),
    ("instance-went-back", instance_goes_back, instances),
    ("instance-went-back", instance_goes_back_before_a_reset, instances),
    ("instance-went-back", instance_goes_back_after_a_reset_that_was_refused, instances),
    ("instance-went-back", instance_goes_back_to_a_reset_of_long_ago, instances),
    ("instance-skipped", instance_skips_to_a_reset_of_long_ago, instances),
    ("instance-lost", instance_never_gets_it, instances),
    ("topic-ghost", message_of_the_former_topic, check_topic_lives),
    ("topic-ghost", message_after_the_deletion, check_topic_lives),
    ("topic-ghost", message_of_nobody, check_topic_lives),
    ("topic-revived", topic_that_comes_back, check_topic_lives),
]
