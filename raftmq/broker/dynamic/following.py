"""One node obeys the dynamic settings of the catalog.

    started with   the file's settings, and over them those that the catalog had at the last look
    catalog says   log.retention_ms = 3_600_000   -> holds at once: `Host.settings` has it
                   raft.tick_ms = 50              -> noted in `settings.json`, for the next start

A node opens its log with its settings, and learns the newest ones from that log. So it keeps a copy
in its folder. If the copy was old or missing, a setting that holds from a start on needs a second
start.

Invariants:
- Settings that contradict each other, or the node's file, change nothing: the node goes on with
  what it has, and its status says why.
- `Host.settings` changes only in the settings that `known.LIVE` lists.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from raftmq.broker.host import Host
from raftmq.broker.world import Worker
from raftmq.log import checked_json
from raftmq.machine.catalog.settings import Scope, Setting

from .known import LIVE, overlaid, values_by_name, why_not
from .topic_retention import TopicRetention

FILE = "settings.json"
"""The copy, in the data folder."""


class DynamicSettings:
    """The dynamic settings that hold for this node."""

    def __init__(self, node: Host, worker: Worker) -> None:
        """Take up the copy: `node.settings` are those of the file until here."""
        self._node = node
        self._worker = worker
        self._file = node.settings
        # None: the file may hold any older settings.
        self._copied: Mapping[str, Any] | None
        self._copied, self._version = self._read_copy()
        self.topics = TopicRetention(node)
        """How long topics keep their messages."""
        self.problem = ""
        """Why the newest settings are not obeyed; empty: they are."""
        try:
            node.settings = overlaid(self._file, self._copied or {})
        except ValueError as error:
            self.problem = str(error)
        self._wanted = node.settings

    def _read_copy(self) -> tuple[Mapping[str, Any], int]:
        """The copy, and its version."""
        files, folder = self._node.world.files, self._file.node.data
        try:
            fields = checked_json.read(files, folder, FILE) or {}
        except ValueError:
            # It is damaged. The catalog has the settings, and the next look writes a new copy.
            return {}, 0
        return fields.get("settings", {}), fields.get("version", 0)

    @property
    def _own(self) -> tuple[Scope, str]:
        return Scope.NODE, str(self._node.id)

    def _values(self) -> dict[str, Any]:
        """The catalog's settings for this node."""
        settings = self._node.catalog.settings
        return settings.of(Scope.CLUSTER) | settings.of(*self._own)

    def follow(self) -> None:
        """The catalog may have changed: obey its settings."""
        settings = self._node.catalog.settings
        # A node starts with an old snapshot of the catalog; its log leads to the copy's version.
        if settings.version <= self._version:
            return
        self._version = settings.version
        values = self._values()
        try:
            self._wanted = overlaid(self._file, values)
        except ValueError as error:
            self.problem = f"{error}; the node goes on with the settings before"
            return
        self.problem = ""
        wanted = values_by_name(self._wanted)
        live = {name: value for name, value in wanted.items() if name in LIVE}
        try:
            self._node.settings = overlaid(self._node.settings, live)
        except ValueError as error:
            # They contradict others of this start, and fit those of the next one.
            self.problem = f"{error}; the node keeps the settings before until its next start"
        if values != self._copied:
            self._copied = values
            write = partial(checked_json.write, self._node.world.files, self._file.node.data, FILE)
            fields = {"settings": values, "version": self._version}
            self._worker.submit(partial(write, fields), self._written)

    def _written(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            # A start would take up old settings, and the operator must know why.
            self.problem = f"{FILE} in {self._file.node.data} cannot be written: {error}"
            self._copied = None

    def why_refused(self, settings: list[Setting]) -> str:
        """Why the catalog's leader refuses to put these; empty: it does not."""
        problem = why_not(settings)
        if problem:
            return problem
        values: dict[str, Any] = self._values()
        for each in settings:
            if each.scope is Scope.CLUSTER or (each.scope, each.of) == self._own:
                values[each.name] = each.value
        try:
            overlaid(self._file, {name: v for name, v in values.items() if v is not None})
        except ValueError as error:
            return str(error)
        return ""

    def status(self) -> dict[str, Any]:
        """The settings that the node runs with, and those that it does not obey yet.

        | key | value |
        |---|---|
        | `version` | of the settings that the node looked at last; 0: it has seen none |
        | `running` | the values of all settings that can be dynamic, by name |
        | `waiting` | names of settings that change with the node's next start |
        | `problem` | why the newest settings are not obeyed; empty: they are |
        """
        runs, wanted = values_by_name(self._node.settings), values_by_name(self._wanted)
        return {
            "version": self._version,
            "running": runs,
            "waiting": sorted(name for name in runs if runs[name] != wanted[name]),
            "problem": self.problem,
        }
