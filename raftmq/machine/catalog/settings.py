"""Dynamic settings: values that operators change while the cluster runs; a part of the catalog.

    PutSettings([Setting("cluster", "", "log.retention_ms", 3_600_000)])     -> version 1
    PutSettings([Setting("topic", "orders", "producer.linger_ms", 5)])       -> version 2
    PutSettings([Setting("topic", "orders", "producer.linger_ms", None)])    -> version 3: it is out

The catalog keeps names and values and knows no meaning. Which settings there are, and which values
each may have, is checked by the leader before it proposes a change, and by each node and client
that obeys: so software of several versions applies a record alike.

A setting is about a name: it may be put before its topic or client exists, and stays after it.

Invariants:
- `version` counts the changes; one that changes nothing is none.
- A change is carried out as a whole or not at all.
- Settings and history are bounded; the newest change stays.

Sources: Diamond, Taobao's settings service; Kafka's dynamic broker configs (KIP-226).
"""

import re
from collections import deque
from collections.abc import Collection
from enum import StrEnum
from itertools import takewhile
from typing import Any

import msgspec

from raftmq.errors import Reason
from raftmq.machine.names import why_no_name
from raftmq.results import Changed, Refused, Result
from raftmq.words import counted

EVERY = "*"
"""The name that stands for each client."""
SETTINGS_MAX = 5_000
"""Settings of a cluster: each node keeps them all in memory, and lists them in one answer."""
TOPIC_SETTINGS_MAX = 4_000
"""Settings above which topics get no more: who may set those of some topics must not keep operators
from a pause of all."""
CHANGED_MAX = 1_000
"""Settings that one change may touch."""
HISTORY_MAX = 10_000
"""Settings in all changes of the history; the oldest changes go first, the newest stays."""
VALUE_BYTES_MAX = 256
"""The longest text, in bytes of UTF-8."""

_NAME = re.compile(r"[a-z_]{1,32}\.[a-z0-9_]{1,64}")

Value = bool | int | str
"""The value of a setting."""


class Scope(StrEnum):
    """The nodes or clients that a setting holds for."""

    CLUSTER = "cluster"
    """All nodes."""
    NODE = "node"
    """One node, by its number."""
    TOPIC = "topic"
    """A topic, by its name: its producers and consumers, and what nodes keep of it."""
    CLIENT = "client"
    """The producers and consumers of the clients with a name (`connect(name=)`), or `EVERY`."""


class Setting(msgspec.Struct, frozen=True, array_like=True):
    """A setting of one scope."""

    scope: Scope
    """What it holds for."""
    of: str
    """The node, topic or client; empty for the cluster."""
    name: str
    """Table and name, such as `log.retention_ms`."""
    value: Value | None
    """The value; None: there is none."""

    def __str__(self) -> str:
        value = "" if self.value is None else self.value
        return f"{f'{self.scope} {self.of}'.rstrip()} {self.name}={value}"


class PutSettings(msgspec.Struct, frozen=True, array_like=True, tag="put_settings"):
    """Put settings, and take out those without a value, as one change; the value is the version."""

    settings: list[Setting]
    """The settings, each once."""
    seen: int = -1
    """The version that the caller saw; refused if there is another by now. -1: any."""


class SettingsChange(msgspec.Struct, frozen=True, array_like=True):
    """A change, as the history keeps it."""

    version: int
    """Its number, from 1."""
    at_ms: int
    """When, by the leader's stamp in milliseconds."""
    user: str
    """Who made it; empty: not known."""
    before: list[Setting]
    """The settings before it."""
    after: list[Setting]
    """The same settings after it."""


class SettingsState:
    """All dynamic settings of a cluster."""

    def __init__(self) -> None:
        self.version = 0
        """The number of the last change; 0: there was none."""
        self.history: deque[SettingsChange] = deque()
        """The last changes, the oldest first."""
        # The values, by scope, name of the scope, and name.
        self._values: dict[tuple[Scope, str, str], Value] = {}
        self._remembered = 0

    def __len__(self) -> int:
        return len(self._values)

    def all(self, scopes: Collection[tuple[str, str]] = ()) -> list[Setting]:
        """The settings of these scopes, sorted; without scopes: of all."""
        found = [
            (key, value) for key, value in self._values.items() if not scopes or key[:2] in scopes
        ]
        return [Setting(*key, value) for key, value in sorted(found)]

    def of(self, scope: Scope, of: str = "") -> dict[str, Value]:
        """The settings of one scope, by name."""
        found = self.all({(scope.value, of)})
        return {each.name: each.value for each in found if each.value is not None}

    def numbers_of_topics(self, name: str) -> dict[str, int]:
        """The values of one setting, by topic; those that are no whole numbers are left out."""
        return {
            of: value
            for (scope, of, its_name), value in self._values.items()
            if scope is Scope.TOPIC and its_name == name and isinstance(value, int)
        }

    def is_touched(self, after: int, scopes: Collection[tuple[str, str]]) -> bool:
        """Has a change after a version touched one of these scopes (none given: any)? True also if
        such changes are no longer kept."""
        later = list(takewhile(lambda change: change.version > after, reversed(self.history)))
        if not scopes or len(later) < self.version - after:
            return self.version > after
        return any((each.scope, each.of) in scopes for change in later for each in change.after)

    def apply(self, command: PutSettings, *, now: int, user: str) -> Result:
        """Carry out a change; `now` is the record's stamp."""
        if 0 <= command.seen != self.version:
            message = f"the settings have version {self.version} by now, not the one that was seen"
            return Refused(Reason.CHANGED_MEANWHILE, f"{message}: look at them again")
        problem = why_no_settings(command.settings)
        if problem:
            return Refused(Reason.BAD_ARGUMENT, problem)
        # True and 1 are equal in Python, and are two values here.
        after = [each for each in command.settings if repr(self._value(each)) != repr(each.value)]
        before = [msgspec.structs.replace(each, value=self._value(each)) for each in after]
        more = sum(each.value is None for each in before) - sum(
            each.value is None for each in after
        )
        of_topics = any(each.scope is Scope.TOPIC and each.value is not None for each in after)
        bound = TOPIC_SETTINGS_MAX if of_topics else SETTINGS_MAX
        if more > 0 and len(self) + more > bound:
            message = f"a cluster has at most {counted(SETTINGS_MAX, 'dynamic setting')}"
            reserved = f", {SETTINGS_MAX - TOPIC_SETTINGS_MAX} of them for others than topics"
            return Refused(Reason.BAD_ARGUMENT, f"{message}{reserved}: take some out")
        if after:
            self._change(SettingsChange(self.version + 1, now, user, before, after))
        return Changed(self.version)

    def _change(self, change: SettingsChange) -> None:
        for each in change.after:
            if each.value is None:
                del self._values[_key(each)]
            else:
                self._values[_key(each)] = each.value
        self.version = change.version
        self.history.append(change)
        self._remembered += len(change.after)
        while self._remembered > HISTORY_MAX and len(self.history) > 1:
            self._remembered -= len(self.history.popleft().after)

    def _value(self, setting: Setting) -> Value | None:
        return self._values.get(_key(setting))

    def dump(self) -> list[Any]:
        """All of it as plain values."""
        return [self.version, self.all(), list(self.history)]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.version, settings, history = state
        for each in msgspec.convert(settings, list[Setting]):
            assert each.value is not None, "a setting without a value was kept"
            self._values[_key(each)] = each.value
        self.history.extend(msgspec.convert(history, list[SettingsChange]))
        self._remembered = sum(len(change.after) for change in self.history)


def _key(setting: Setting) -> tuple[Scope, str, str]:
    return setting.scope, setting.of, setting.name


def why_no_settings(settings: list[Setting]) -> str:
    """Why a change is refused, whatever its settings mean; empty: it is not."""
    if not 1 <= len(settings) <= CHANGED_MAX:
        return f"a change touches 1 to {CHANGED_MAX} settings, not {len(settings)}"
    if len({_key(each) for each in settings}) < len(settings):
        return "a change names each setting once"
    return next(filter(None, map(_why_no_setting, settings)), "")


def _why_no_setting(setting: Setting) -> str:
    of, value = setting.of, setting.value
    match setting.scope:
        case Scope.CLUSTER:
            problem = "" if not of else f"settings of the cluster have no further name, {of[:40]!r}"
        case Scope.NODE:
            is_number = of.isascii() and of.isdecimal() and of[:1] != "0" and len(of) <= 19
            problem = "" if is_number else f"{of[:40]!r} is not the number of a node"
        case Scope.TOPIC:
            problem = why_no_name(of, "topic")
        case Scope.CLIENT:
            problem = "" if of == EVERY else why_no_name(of, "client")
    if problem:
        return problem
    if not _NAME.fullmatch(setting.name):
        return f"{setting.name[:110]!r} is not the name of a setting: TABLE.NAME"
    if isinstance(value, str) and len(value.encode(errors="surrogatepass")) > VALUE_BYTES_MAX:
        return f"{setting.name} is longer than {VALUE_BYTES_MAX} bytes"
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return f"{setting.name} has more than 64 bits"
    return ""
