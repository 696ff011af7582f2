"""Messages about dynamic settings.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| SETTINGS | `FindSettings`, `FoundSettings` | - | - |
| SETTINGS_HISTORY | `FindSettingsHistory`, `FoundSettingsHistory` | - | - |

Settings are changed with `messages.Admin`: see `raftmq.machine.catalog.settings`.
"""

from typing import Annotated

from msgspec import Meta

from .directory import Doing
from .messages import _Wire

SCOPES_MAX = 1_000
"""Scopes that one request may name."""


class SettingScope(_Wire, frozen=True):
    """What settings hold for."""

    scope: str
    """`cluster`, `node`, `topic` or `client`."""
    of: str
    """The node, topic or client; empty for the cluster."""


class FindSettings(_Wire, frozen=True):
    """Ask a node for the settings as it knows them, perhaps not before they change."""

    scopes: Annotated[list[SettingScope], Meta(max_length=SCOPES_MAX)]
    """The wanted scopes; empty: all settings."""
    after: int = -1
    """The version that the client knows: the answer waits for a change of these scopes. -1: the
    answer comes at once, and is linearizable."""
    wait_ms: int = 0
    """How long it may wait. A later request on the connection ends the wait, if it names scopes as
    this one does, or names none as this one."""
    doing: Doing | None = None
    """What the client does, for the directory; None: it does not say."""


class SettingView(_Wire, frozen=True):
    """A setting."""

    scope: str
    """`cluster`, `node`, `topic` or `client`."""
    of: str
    """The node, topic or client; empty for the cluster."""
    name: str
    """Table and name, such as `log.retention_ms`."""
    value: bool | int | str | None
    """The value; None, in a change: there was none, or there is none any longer."""

    @property
    def scope_text(self) -> str:
        """The scope in words: `cluster`, `node 3`, `client *`."""
        return f"{self.scope} {self.of}".rstrip()


class FoundSettings(_Wire, frozen=True):
    """The settings of these scopes; of topics only those that the client may see."""

    version: int
    """The number of the last change of any setting that the node knows. If it is below `after`,
    the node lags, and its settings are older than those that the client has."""
    settings: list[SettingView]
    """By scope and name."""


class FindSettingsHistory(_Wire, frozen=True):
    """Ask the leader of the system group for changes of the settings, linearizably."""

    after: int = 0
    """Only changes after this version."""


class SettingsChangeView(_Wire, frozen=True):
    """A change."""

    version: int
    """Its number, from 1."""
    at_ms: int
    """When, by the leader's stamp in milliseconds."""
    user: str
    """Who made it; empty: not known."""
    before: list[SettingView]
    """The settings before it."""
    after: list[SettingView]
    """The same settings after it."""


class FoundSettingsHistory(_Wire, frozen=True):
    """Changes, the oldest first."""

    changes: list[SettingsChangeView]
    """Those that are kept, of those that were asked for."""
    is_cut: bool = False
    """More follow: ask again after the last version."""
