"""Which dynamic settings there are, what each holds for, and which values it may have.

| scope | settings |
|---|---|
| cluster, node | those of a node's file, but for the tables `node`, `tls` and `access` |
| topic, client | those that clients obey: `raftmq.pushed` |
| topic | `log.retention_ms`, in place of the nodes' (`topic_retention`) |

What a node's file says of `[node]`, `[tls]` and `[access]` stays there: who a node is and who may
talk to it must not depend on what it hears from others.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from raftmq.broker.settings import Settings
from raftmq.machine.catalog.settings import Scope, Setting
from raftmq.pushed import Pushed
from raftmq.words import did_you_mean

TOPIC_RETENTION = "log.retention_ms"
"""The setting of nodes that a topic may have for itself."""
OWN_TABLES = frozenset(("node", "tls", "access"))
"""Tables that stay in a node's file."""
NODE_TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    if field.name not in OWN_TABLES
}
"""Tables of a node's settings that can be dynamic."""
CLIENT_TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    field.name: field.type for field in msgspec.structs.fields(Pushed)
}
"""Tables that clients obey."""
SAME_ON_ALL = frozenset(("raft", "balance", "directory"))
"""Tables that no node has for itself."""
# `log.reserve_bytes` is not among them: with one that no disk has, no node could store the
# correction, and if it held at once, it would come back with the log at each start.
LIVE = frozenset(
    (
        "log.retention_ms",
        "log.retention_bytes",
        "log.dead_ms",
        "log.dead_bytes",
        "log.scrub_bytes_per_second",
        "limits.copy_bytes_per_second",
        "balance.leaders_ms",
        "balance.absent_ms",
    )
)
"""Settings of nodes that hold at once; the others hold from the next start of a node. Code that
obeys one of these reads it from `Host.settings` at each use, and keeps no copy."""


class Known(NamedTuple):
    """A setting that there is."""

    type: Any
    """The type of its value."""
    default: Any
    """Its value if nothing is said; None: as the application says."""
    is_live: bool
    """True: it holds at once; False: from the next start of a node."""


def _of(tables: Mapping[str, type[msgspec.Struct]]) -> dict[str, Known]:
    return {
        f"{table}.{field.name}": Known(
            field.type, field.default, tables is CLIENT_TABLES or f"{table}.{field.name}" in LIVE
        )
        for table, struct in tables.items()
        for field in msgspec.structs.fields(struct)
    }


OF_NODES: Final[Mapping[str, Known]] = _of(NODE_TABLES)
"""Settings of nodes, by name."""
OF_CLIENTS: Final[Mapping[str, Known]] = _of(CLIENT_TABLES)
"""Settings of clients, by name."""


OF_TOPICS: Final[Mapping[str, Known]] = {
    **OF_CLIENTS,
    TOPIC_RETENTION: OF_NODES[TOPIC_RETENTION],
}
"""Settings of topics, by name."""
OF_SCOPES: Final[Mapping[Scope, Mapping[str, Known]]] = {
    Scope.CLUSTER: OF_NODES,
    Scope.NODE: OF_NODES,
    Scope.TOPIC: OF_TOPICS,
    Scope.CLIENT: OF_CLIENTS,
}
"""Settings of each scope, by name."""


def why_not(settings: list[Setting]) -> str:
    """Why these settings may not be put; empty: they may. One without a value may be taken out
    whatever its name is: newer software may have put it."""
    return next(filter(None, (_why(each) for each in settings if each.value is not None)), "")


def _why(setting: Setting) -> str:
    known = OF_SCOPES[setting.scope].get(setting.name)
    if known is None:
        return _why_unknown(setting)
    if setting.scope not in scopes_of(setting.name):
        return f"{setting.name} is the same on all nodes: set it for the cluster"
    try:
        msgspec.convert(setting.value, known.type)
    except msgspec.ValidationError as error:
        return f"{setting.name}={setting.value!r} is refused: {error}"
    return ""


def _why_unknown(setting: Setting) -> str:
    table = setting.name.partition(".")[0]
    if table in OWN_TABLES:
        return f"{setting.name} stands in the file of each node and cannot be dynamic"
    fitting = scopes_of(setting.name)
    if fitting:
        *others, last = fitting
        scopes = f"{', '.join(others)} or {last}" if others else last
        return f"{setting.name} is a setting of {scopes}, not of {setting.scope}"
    meant = did_you_mean(setting.name, list(OF_SCOPES[setting.scope]))
    return f"there is no setting {setting.name} of {setting.scope}{meant}"


def scopes_of(name: str) -> list[Scope]:
    """The scopes that have a setting."""
    return [
        scope
        for scope, known in OF_SCOPES.items()
        if name in known and not (scope is Scope.NODE and name.partition(".")[0] in SAME_ON_ALL)
    ]


def overlaid(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """A node's settings with dynamic values in their place.

    Raises:
        ValueError: two of them contradict each other; or a name or value is not known here.
    """
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in OF_NODES:
            raise ValueError(f"this software does not know the setting {name}")
        table, _, field = name.partition(".")
        tables.setdefault(table, {})[field] = value
    changed = {
        table: msgspec.convert(
            msgspec.to_builtins(getattr(settings, table)) | fields, NODE_TABLES[table]
        )
        for table, fields in tables.items()
    }
    return msgspec.structs.replace(settings, **changed).validate()


def values_by_name(settings: Settings) -> dict[str, Any]:
    """The values of all settings that can be dynamic."""
    return {
        f"{table}.{field}": value
        for table in NODE_TABLES
        for field, value in msgspec.structs.asdict(getattr(settings, table)).items()
    }
