"""One node obeys the dynamic settings of the catalog.

    started with   the file's settings, and over them those that the catalog had at the last look
    catalog says   log.retention_ms = 3_600_000   -> holds at once: `Host.settings` has it
                   raft.tick_ms = 50              -> noted in `settings.json`, for the next start

A node learns of its settings from a log that it opens with them, so it keeps a copy of their names
and values in its folder. The copy may be old or missing: then those that hold from a start on hold
from the start after the next look.

Invariants:
- Settings that contradict each other, or the node's file, change nothing: the node goes on with
  what it has, and its status says why.
- `Host.settings` changes only in the settings that `known.LIVE` lists.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from raftmq.broker.host import Host
from raftmq.broker.settings import Settings
from raftmq.broker.world import Worker
from raftmq.log import checked_json
from raftmq.machine.catalog.settings import Scope, Setting

from .known import LIVE, NODE_TABLES, overlaid, running, why_refused

FILE = "settings.json"
"""The copy, in the data folder."""


class DynamicSettings:
    """The dynamic settings that hold for this node."""

    def __init__(self, node: Host, worker: Worker) -> None:
        """Take up the copy: `node.settings` are those of the file until here."""
        self._node = node
        self._worker = worker
        self._file = node.settings
        self._copied = self._read_copy()
        self._version = 0
        self.problem = ""
        """Why the newest settings are not obeyed; empty: they are."""
        try:
            node.settings = overlaid(self._file, self._copied)
        except ValueError as error:
            self.problem = str(error)
        self._wanted = node.settings

    def _read_copy(self) -> Mapping[str, Any]:
        files, folder = self._node.world.files, self._file.node.data
        try:
            fields = checked_json.read(files, folder, FILE) or {}
        except ValueError:
            # It is damaged. The catalog has the settings, and the next look writes a new copy.
            return {}
        values = fields.get("settings", {})
        return values if isinstance(values, dict) else {}

    def follow(self) -> None:
        """The catalog may have changed: obey its settings."""
        settings = self._node.catalog.settings
        if settings.version == self._version:
            return
        self._version = settings.version
        own = str(self._node.id)
        values = settings.of(Scope.CLUSTER) | settings.of(Scope.NODE, own)
        try:
            self._wanted = overlaid(self._file, values)
        except ValueError as error:
            self.problem = f"{error}; the node goes on with the settings before"
            return
        self.problem = ""
        self._node.settings = _with_live(self._node.settings, self._wanted)
        if values != self._copied:
            self._copied = values
            write = partial(checked_json.write, self._node.world.files, self._file.node.data, FILE)
            self._worker.submit(partial(write, {"settings": values}), self._written)

    def _written(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            # A start would go on with old settings, and nobody would know why.
            self.problem = f"{FILE} in {self._file.node.data} cannot be written: {error}"
            self._copied = {}

    def why_refused(self, settings: list[Setting]) -> str:
        """Why the catalog's leader refuses to put these; empty: it does not."""
        own, state = (Scope.NODE, str(self._node.id)), self._node.catalog.settings
        values = state.of(Scope.CLUSTER) | state.of(*own)
        for each in settings:
            if each.scope is Scope.CLUSTER or (each.scope, each.of) == own:
                values.pop(each.name, None)
                values |= {} if each.value is None else {each.name: each.value}
        problem = why_refused(settings)
        if problem:
            return problem
        try:
            overlaid(self._file, values)
        except ValueError as error:
            return str(error)
        return ""

    def status(self) -> dict[str, Any]:
        """What the node runs with, and what it does not obey yet."""
        runs, wanted = running(self._node.settings), running(self._wanted)
        return {
            "version": self._version,
            "running": runs,
            "waiting": sorted(name for name in runs if runs[name] != wanted[name]),
            "problem": self.problem,
        }


def _with_live(running_: Settings, wanted: Settings) -> Settings:
    """The settings that run, with the live ones of those that are wanted."""
    changed = {
        table: msgspec.structs.replace(
            getattr(running_, table),
            **{
                field: getattr(getattr(wanted, table), field)
                for field in struct.__struct_fields__
                if f"{table}.{field}" in LIVE
            },
        )
        for table, struct in NODE_TABLES.items()
    }
    return msgspec.structs.replace(running_, **changed)
