"""Several administrators who make, change and delete the same topics and consumer groups.

Each administrator draws one call after the other. The form of the history:
`raftmq.checkers.objects.administration`. The filter of a group is a register: the last one holds.

Invariants:
- `OutcomeUnknown` is `unknown`, `Unavailable` is `fail`: it promises that nothing happened.
- An answer that shows only that a topic was deleted before the next look is `unknown`, too.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import trio

from raftmq.checkers import Limit, Report, check_linearizability
from raftmq.checkers.history import History, Recorder, Value
from raftmq.checkers.objects.administration import ABSENT, DONE, FEWER, GROUP, TAKEN, TOPIC
from raftmq.checkers.objects.models import REGISTER
from raftmq.client import Client
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable

TOPICS = ("x",)
"""Topics that come and go: few, so that administrators meet."""
GROUPS = ("g",)
"""Groups that come and go."""
FILTERED = ("v",)
"""Groups whose filters change."""
QUEUES_MAX = 4
ATTEMPTS_MAX = 9
CALL_SECONDS = (0.5, 2.0, 12.0)
"""Timeouts: some calls ask again for long, some end between two of their parts."""
THINK_SECONDS = 0.1
"""Between two calls of an administrator, on average."""
LOOKS_SHARE = 0.3
LIMIT = Limit(seconds=20.0)

Answer = Callable[[], Awaitable[Value]]


class Administrators:
    """State that all administrators of a run share."""

    def __init__(self, recorder: Recorder, *, topic: str, counts: Counter[str]) -> None:
        """`topic`: a topic that is never deleted, for attachments and filters."""
        self._recorder = recorder
        self._topic = topic
        self._counts = counts

    async def administer(
        self, mq: Client, process: int, random: Random, is_wanted: Callable[[], bool]
    ) -> None:
        """Be one administrator; a cancelled one leaves a call without an end."""
        while is_wanted():
            call = random.choice([self._about_topic, self._about_group, self._about_filter])
            await call(mq, process, random)
            await trio.sleep(random.expovariate(1 / THINK_SECONDS))

    async def look(self, mq: Client, process: int) -> None:
        """Look at all topics, groups and filters.

        Raises:
            Unavailable: no node could be reached.
        """
        for name in TOPICS:
            await self._call(process, "see_topic", name, None, partial(_see_topic, mq, name))
        for name in GROUPS:
            await self._call(process, "see_group", name, None, partial(_see_group, mq, name))
        for name in FILTERED:
            await self._call(process, "read", name, None, partial(self._see_filter, mq, name))

    async def _about_topic(self, mq: Client, process: int, random: Random) -> None:
        admin, name, queues = mq.admin, random.choice(TOPICS), random.randint(1, QUEUES_MAX)
        seconds = random.choice(CALL_SECONDS)

        async def make() -> Value:
            try:
                await admin.create_topic(name, queues, timeout=seconds)
            except Rejected as error:
                return _refusal(error, {Reason.TOPIC_EXISTS: TAKEN})
            return DONE

        async def grow() -> Value:
            try:
                await admin.alter_topic(name, queues, timeout=seconds)
            except Rejected as error:
                return _refusal(error, {Reason.BAD_ARGUMENT: FEWER})
            return DONE

        async def drop() -> Value:
            try:
                await admin.delete_topic(name, timeout=seconds)
            except Rejected as error:
                return _refusal(error, {Reason.UNKNOWN_TOPIC: ABSENT})
            return DONE

        if random.random() < LOOKS_SHARE:
            await self._call(process, "see_topic", name, None, partial(_see_topic, mq, name))
            return
        match random.choice(["make", "make", "grow", "drop", "drop"]):
            case "make":
                await self._call(process, "make_topic", name, queues, make)
            case "grow":
                await self._call(process, "grow_topic", name, queues, grow)
            case _:
                await self._call(process, "drop_topic", name, None, drop)

    async def _about_group(self, mq: Client, process: int, random: Random) -> None:
        admin, name, attempts = mq.admin, random.choice(GROUPS), random.randint(1, ATTEMPTS_MAX)
        seconds = random.choice(CALL_SECONDS)

        async def put() -> Value:
            try:
                await admin.create_consumer_group(name, attempts_max=attempts, timeout=seconds)
            except Rejected as error:
                return _refusal(error, {Reason.UNKNOWN_GROUP: DONE})
            return DONE

        async def attach() -> Value:
            try:
                await admin.attach(self._topic, name, timeout=seconds)
            except Rejected as error:
                # The group was attached, and another administrator has undone that since.
                return _refusal(error, {Reason.UNKNOWN_GROUP: DONE})
            return DONE

        async def detach() -> Value:
            return DONE if await admin.detach(self._topic, name, timeout=seconds) else ABSENT

        async def drop() -> Value:
            try:
                await admin.delete_consumer_group(name, timeout=seconds)
            except Rejected as error:
                return _refusal(error, {Reason.UNKNOWN_GROUP: ABSENT})
            return DONE

        if random.random() < LOOKS_SHARE:
            await self._call(process, "see_group", name, None, partial(_see_group, mq, name))
            return
        match random.choice(["put", "attach", "detach", "drop", "drop"]):
            case "put":
                await self._call(process, "put_group", name, attempts, put)
            case "attach":
                await self._call(process, "attach", name, None, attach)
            case "detach":
                await self._call(process, "detach", name, None, detach)
            case _:
                await self._call(process, "drop_group", name, None, drop)

    async def _about_filter(self, mq: Client, process: int, random: Random) -> None:
        name, value = random.choice(FILTERED), self._recorder.unique_value()
        seconds = random.choice(CALL_SECONDS)

        async def subscribe() -> Value:
            await mq.admin.subscribe(self._topic, name, f"size > {value}", timeout=seconds)
            return value

        if random.random() < LOOKS_SHARE:
            await self._call(process, "read", name, None, partial(self._see_filter, mq, name))
        else:
            await self._call(process, "write", name, value, subscribe)

    async def _see_filter(self, mq: Client, name: str) -> Value:
        for one in await mq.admin.list_subscriptions(topic=self._topic, group=name):
            return int(one.filter.rpartition(" ")[2])
        return None

    async def _call(
        self, process: int, function: str, name: str, value: Value, answer: Answer
    ) -> None:
        operation = self._recorder.invoke(process, function, name, value)
        try:
            result = await answer()
        except Unavailable:
            self._recorder.fail(operation)
        except (OutcomeUnknown, _Doubt):
            self._counts["administered in doubt"] += 1
            self._recorder.unknown(operation)
        else:
            self._counts["administered"] += 1
            self._recorder.ok(operation, value=result)


async def _see_topic(mq: Client, name: str) -> Value:
    found = await mq.admin.list_topics()
    return next((topic.queues for topic in found if topic.name == name), None)


async def _see_group(mq: Client, name: str) -> Value:
    for group in await mq.admin.consumer_groups(name=name):
        return group.attempts_max, bool(group.attachments)
    return None


class _Doubt(Exception):
    """The call was refused because of a later change."""


def _refusal(error: Rejected, answers: dict[Reason, str]) -> Value:
    """The model's word for a refusal."""
    if error.reason in answers:
        return answers[error.reason]
    if error.reason is Reason.UNKNOWN_TOPIC:
        raise _Doubt from error
    raise error


def judge_administration(history: History) -> list[Report]:
    """Judge topics, groups, and the filters of groups, each by its model."""
    reports = []
    for model in (TOPIC, GROUP, REGISTER):
        part = history.select(history.is_function(*model.functions))
        reports.append(check_linearizability(part, model, limit=LIMIT))
    return reports
