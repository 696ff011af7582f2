"""The options of `Client.consumer`, checked for each kind of consumer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, NamedTuple, Self

from raftmq.client.admin.consumer_groups import require_no_instance
from raftmq.client.arguments import require
from raftmq.client.consume.start import OnTrimmed, Start, start_of
from raftmq.client.pop.prefetcher import PREFETCH, PopSettings
from raftmq.errors import Reason, Rejected, WrongType
from raftmq.filters import compile as compile_filter
from raftmq.filters import is_tags
from raftmq.machine.catalog.membership import SESSION_MS_MAX, SESSION_MS_MIN, JoinGroup
from raftmq.pop.policy import Mode
from raftmq.wire.directory import Use

from .arguments import typed_call

BROADCAST_COMMIT_SECONDS = 1.0
"""Default time between two commits of an instance of a broadcast group."""
INSTANCE_KEPT_MS = 7 * 24 * 3600 * 1000
"""How long offsets of an instance with a name are kept after its last commit."""
RANDOM_KEPT_MS = 24 * 3600 * 1000
"""How long offsets of an instance without a name are kept: it never comes back."""

READING = {"queues", "on_trimmed", "auto_commit", "session", "instance"}
"""Options of only the consumers that read by offset."""
POPPING = {"prefetch", "invisible", "renew"}
"""Options of only the consumers that pop."""
COMMON = {"group", "start", "prefetch_bytes"}
"""Options of both, beside those that `Client.consumer` reads itself."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """See `Client.consumer`."""

    group: str | None
    queues: tuple[int, ...] | None
    start: Start
    on_trimmed: OnTrimmed
    auto_commit: float | None
    prefetch_bytes: int
    filter: str | None = None
    kept_ms: int = 0
    """Committed offsets are forgotten this long after the last commit; 0: never."""

    def use(self, topic: str, *, is_instance: bool) -> Use:
        """What such a consumer does, for the directory."""
        return Use("broadcast" if is_instance else "pull", topic, self.group or "")

    def validate(self) -> Self:
        """This object, or `Rejected`."""
        require(self.group != "", "a group has a name, or is None")
        start_of(self.start)
        trims = ("error", "earliest", "latest")
        require(self.on_trimmed in trims, f"on_trimmed is one of {trims}")
        require(self.auto_commit is None or self.auto_commit > 0, "auto_commit must be positive")
        require(self.auto_commit is None or self.group is not None, "auto_commit needs a group")
        if self.filter is not None:
            require(self.group is not None, "a filter is a group's: give group= too")
            compile_filter(self.filter)
        require(self.prefetch_bytes > 0, "prefetch_bytes must be positive")
        require(self.queues is None or len(self.queues) > 0, "queues is empty: None means all")
        return self


Queues = Sequence[int] | Literal["assigned"] | None


class Reading(NamedTuple):
    """The checked options of a consumer that reads by offset."""

    settings: ConsumerSettings
    """See `Client.consumer`."""
    join: JoinGroup | None
    """The command by which a member of a group joins; None: the consumer is no member."""


@typed_call
def reading(
    topic: str,
    mode: Mode,
    random: Random,
    *,
    group: str | None = None,
    queues: Queues = None,
    start: Start | None = None,
    on_trimmed: OnTrimmed = "error",
    auto_commit: float | None = None,
    prefetch_bytes: int = 8 * 1024 * 1024,
    filter_: str | None = None,
    session: float = 10.0,
    instance: str | None = None,
) -> Reading:
    """Check the options of a consumer in mode `"pull"` or `"broadcast"`.

    Raises:
        Rejected: `BAD_ARGUMENT`, the options contradict each other, or a value is wrong.
    """
    require_name(group)
    is_broadcast = mode is Mode.BROADCAST
    is_member = is_broadcast or queues == "assigned"
    is_known = not isinstance(queues, str) or queues == "assigned"
    require(is_known, f"queues={queues!r} is none of: a list of numbers, 'assigned', or None (all)")
    require(not is_broadcast or queues is None, "each instance of a broadcast group reads all")
    require(bool(group) or not is_member, "members belong to a group: give group=")
    require(is_member or instance is None, "instance= is for members: give queues='assigned' too")
    kept_ms = 0
    if is_broadcast:
        kept_ms = INSTANCE_KEPT_MS if instance else RANDOM_KEPT_MS
        auto_commit = BROADCAST_COMMIT_SECONDS if auto_commit is None else auto_commit
        instance = instance or f"{random.getrandbits(64):016x}"
    named = None if queues is None or isinstance(queues, str) else tuple(queues)
    settings = ConsumerSettings(
        group,
        named,
        start if start is not None else "latest" if is_broadcast else "earliest",
        on_trimmed,
        auto_commit,
        prefetch_bytes,
        filter_,
        kept_ms,
    )
    if not is_member:
        return Reading(settings, None)
    assert group is not None
    return Reading(settings, _join(topic, group, mode, random, session, instance or ""))


def _join(
    topic: str, group: str, mode: Mode, random: Random, session: float, instance: str
) -> JoinGroup:
    session_ms = int(session * 1000)
    if not SESSION_MS_MIN <= session_ms <= SESSION_MS_MAX:
        message = f"a session is {SESSION_MS_MIN / 1000:g} to {SESSION_MS_MAX / 1000:g} s"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    member = random.getrandbits(63) or 1
    return JoinGroup(topic, group, member, session_ms, instance, mode=mode, notes_beginning=True)


@typed_call
def popping(
    mode: Mode,
    *,
    group: str | None = None,
    start: Start | None = None,
    prefetch: int | None = None,
    prefetch_bytes: int = 8 * 1024 * 1024,
    invisible: float | None = None,
    renew: float | None = None,
    filter_: str | None = None,
) -> PopSettings:
    """Check the options of a consumer that pops.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no group, or the start is neither end.
    """
    require_name(group)
    if not group:
        message = f"mode {mode.value!r} is for the consumers of a group: give group="
        raise Rejected(Reason.BAD_ARGUMENT, message)
    if start not in (None, "earliest", "latest"):
        message = f"mode {mode.value!r} starts at 'earliest' or 'latest', not at {start!r}"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    ahead = PREFETCH if prefetch is None else prefetch
    is_latest = start == "latest"
    return PopSettings(group, mode, is_latest, ahead, prefetch_bytes, invisible, renew, filter_)


def require_name(group: str | None) -> None:
    """Refuse the name of an instance of a broadcast group as a group's name."""
    if group is not None:
        require_no_instance(group)


def only(options: Mapping[str, Any], own: set[str]) -> dict[str, Any]:
    """The options without those of the other kind of consumer, which must be None."""
    for name in sorted(options.keys() - READING - POPPING - COMMON):
        raise WrongType(
            f"consumer() has no option {name}=: it has {', '.join(sorted(own | COMMON))}"
        )
    other, why = (POPPING, "to pop: give mode='pop'") if own is READING else (READING, "to pull")
    for name in sorted(other & options.keys()):
        if options[name] is not None:
            raise Rejected(Reason.BAD_ARGUMENT, f"{name}= is {why}, or leave it out")
    return {name: value for name, value in options.items() if name not in other}


def filter_of(sql: str | None, tags: str | None) -> str | None:
    """The filter given by `filter=` or `tags=`; None: neither is given."""
    if tags is None:
        return sql
    if sql is not None:
        raise Rejected(Reason.BAD_ARGUMENT, "give filter= or tags=, not both")
    if not is_tags(tags):
        message = f"{tags[:80]!r} is no list of tags, as 'paid || shipped': give filter= for SQL"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    return tags
