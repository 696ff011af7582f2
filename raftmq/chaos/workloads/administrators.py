"""Several administrators who make, change and delete the same topics, consumer groups and settings.

Each administrator draws one call after the other. The form of the history:
`raftmq.checkers.objects.administration`. The filter of a group is a register: the last one holds.
So is a dynamic setting, which is also changed on condition that no other change came first.

Invariants:
- `OutcomeUnknown` is `unknown`, `Unavailable` is `fail`: it promises that nothing happened.
- An answer that shows only that a topic was deleted before the next look is `unknown`, too.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random

import trio

from raftmq.checkers import Limit, Report, check_linearizability
from raftmq.checkers.history import History, Recorder, Value
from raftmq.checkers.objects.administration import ABSENT, DONE, FEWER, GROUP, TAKEN, TOPIC
from raftmq.checkers.objects.models import REGISTER
from raftmq.client import Client
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.wire.settings import FoundSettings

TOPICS = ("x",)
"""Topics that come and go: few, so that administrators meet."""
GROUPS = ("g",)
"""Groups that come and go."""
FILTERED = ("v",)
"""Groups whose filters change."""
SETTING, CLIENTS = "producer.batch_messages", ("client", "*")
"""A setting that all clients obey."""
QUEUES_MAX = 4
ATTEMPTS_MAX = 9
CALL_SECONDS = (0.5, 2.0, 12.0)
"""Timeouts: some calls ask again for long, some end between two of their parts."""
THINK_SECONDS = 0.1
"""Between two calls of an administrator, on average."""
LOOKS_SHARE = 0.3
FOLLOW_SECONDS = 5.0
"""The longest wait for a change before a look whether the run is over."""
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
            about = [self._about_topic, self._about_group, self._about_filter, self._about_setting]
            await random.choice(about)(mq, process, random)
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
        await self._call(process, "read", SETTING, None, partial(_see_setting, mq))

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

    async def _about_setting(self, mq: Client, process: int, random: Random) -> None:
        # The setting is 1 at least.
        value, seconds = 1 + self._recorder.unique_value(), random.choice(CALL_SECONDS)
        scope, of = CLIENTS
        seen: list[FoundSettings] = []

        async def see() -> Value:
            seen.append(await mq.settings.get(*CLIENTS, timeout=seconds))
            return _value_in(seen[0])

        async def put() -> Value:
            await _soon(mq.settings.put({SETTING: value}, scope=scope, of=of, timeout=seconds))
            return value

        async def exchange() -> Value:
            change = mq.settings.put(
                {SETTING: value}, scope=scope, of=of, seen=seen[0].version, timeout=seconds
            )
            try:
                await _soon(change)
            except Rejected as error:
                return _refusal(error, {Reason.CHANGED_MEANWHILE: False})
            return True

        await self._call(process, "read", SETTING, None, see)
        if random.random() < LOOKS_SHARE or not seen:
            return
        if random.random() < 0.5:
            await self._call(process, "write", SETTING, value, put)
        else:
            old = _value_in(seen[0])
            # Time for another administrator to be quicker.
            await trio.sleep(random.expovariate(1 / THINK_SECONDS))
            await self._call(process, "cas", SETTING, (old, value), exchange)

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


class Follower:
    """A client that lives through a run, hears of each change of the settings, and obeys."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.is_done = False
        """True once it obeys what is set at the end."""

    async def follow(self, mq: Client, topic: str, is_over: Callable[[], bool]) -> None:
        """Hear of each change once and in order; return once the client obeys the last one."""
        version, value = 0, None
        async with mq.producer(topic) as producer:
            while not self.is_done:
                with trio.move_on_after(FOLLOW_SECONDS), suppress(Unavailable):
                    for change in await mq.settings.wait_for_change(version):
                        assert change.version == version + 1, f"{change} after {version}"
                        version = change.version
                        value = change.after[0].value
                        self._counts["changes of settings heard"] += 1
                if is_over():
                    with suppress(Unavailable):
                        is_last = (await mq.settings.get()).version == version
                        obeyed = producer._settings.batch_messages
                        self.is_done = is_last and (value is None or obeyed == value)


async def _soon(change: Awaitable[int]) -> int:
    """Make a change, unless the cluster has not yet taken up the level of its software."""
    try:
        return await change
    except Rejected as error:
        if error.reason is Reason.OLD_SOFTWARE:
            raise Unavailable(str(error)) from error
        raise


async def _see_setting(mq: Client) -> Value:
    return _value_in(await mq.settings.get(*CLIENTS))


def _value_in(found: FoundSettings) -> Value:
    return next((each.value for each in found.settings if each.name == SETTING), None)


async def _see_topic(mq: Client, name: str) -> Value:
    found = await mq.admin.list_topics()
    return next((topic.queues for topic in found if topic.name == name), None)


async def _see_group(mq: Client, name: str) -> Value:
    for group in await mq.admin.consumer_groups(name=name):
        return group.attempts_max, bool(group.attachments)
    return None


class _Doubt(Exception):
    """The call was refused because of a later change."""


def _refusal(error: Rejected, answers: Mapping[Reason, Value]) -> Value:
    """The model's word for a refusal."""
    if error.reason in answers:
        return answers[error.reason]
    if error.reason is Reason.UNKNOWN_TOPIC:
        raise _Doubt from error
    raise error


def judge_administration(history: History) -> list[Report]:
    """Judge topics, groups, the filters of groups, and a setting, each by its model."""
    reports = []
    for model in (TOPIC, GROUP, REGISTER):
        part = history.select(history.is_function(*model.functions))
        reports.append(check_linearizability(part, model, limit=LIMIT))
    return reports
