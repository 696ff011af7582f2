"""Requests about dynamic settings: lists, their history, and waits for a change.

    SETTINGS [topic orders, client *], after 7  ──> waits until a change after 7 touches one of
                                                    these scopes, or until its time is over

Every node answers what waits, from the catalog as it is here. Each connection has two such requests
at most: one for some scopes, as of its producers and consumers, and one for all settings. A newer
one of the same kind ends the wait of the one before.

Invariants:
- A request is answered once.
- A client that asks again with the highest version of all answers misses no change, whichever node
  it asks. A node that lags answers with an older version: that answer says nothing.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from raftmq.access.rules import Resource
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.answers import LATER, Answer, OpenRequest, unread
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.dispatcher import group_route, system_group
from raftmq.broker.serve.pages import first_page
from raftmq.broker.service import Service
from raftmq.broker.timers import Timer
from raftmq.log.record import Record
from raftmq.machine.catalog.catalog import SYSTEM_GROUP
from raftmq.machine.catalog.settings import (
    SETTINGS_MAX,
    Scope,
    Setting,
    SettingsChange,
    SettingsState,
)
from raftmq.results import Result
from raftmq.wire.directory import Doing
from raftmq.wire.frame import HEADER_BYTES_MAX
from raftmq.wire.messages import FrameKind
from raftmq.wire.settings import (
    FindSettings,
    FindSettingsHistory,
    FoundSettings,
    FoundSettingsHistory,
    SettingsChangeView,
    SettingView,
)

SETTING_BYTES = 550
"""More than the longest setting in an answer."""
assert SETTINGS_MAX * SETTING_BYTES < HEADER_BYTES_MAX, "the answer to FindSettings"

_Place = tuple[Connection, bool]


class _Waiting(NamedTuple):
    """A request that waits for a change."""

    asked: OpenRequest
    request: FindSettings
    timer: Timer


class SettingsRequests(Service):
    """The handlers of these requests."""

    def __init__(self, node: Host, heard: Callable[[Connection, Doing], None]) -> None:
        """`heard` is called with what a client does."""
        self._node = node
        self._heard = heard
        # By connection, and whether the request names scopes.
        self._waiting: dict[_Place, _Waiting] = {}
        self._version = 0
        system = system_group(node)
        self.routes = {
            FrameKind.SETTINGS: group_route(FindSettings, system, self._settings),
            FrameKind.SETTINGS_HISTORY: group_route(FindSettingsHistory, system, self._history),
        }

    # Calls of the node

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """Answer the requests that wait for what has changed."""
        settings = self._node.catalog.settings
        if group.number != SYSTEM_GROUP or settings.version == self._version:
            return
        self._version = settings.version
        for place, each in list(self._waiting.items()):
            # All clients may have to hear of a change.
            self._node.turns.make(place[0], partial(self._look, place, each))

    def closed(self, connection: Connection) -> None:
        """Drop the requests that wait on a connection."""
        for place in ((connection, False), (connection, True)):
            each = self._waiting.pop(place, None)
            if each is not None:
                each.timer.cancel()

    # Requests

    def _settings(self, request: FindSettings, group: Group, asked: OpenRequest) -> Answer:
        if request.doing is not None:
            self._heard(asked.connection, request.doing)
        if request.after < 0:
            return asked.read(group, lambda: self._found(request, asked))
        place, settings = (asked.connection, bool(request.scopes)), self._node.catalog.settings
        before = self._waiting.get(place)
        if before is not None:
            self._end_wait(place, before)
        wait_ms = min(request.wait_ms, self._node.settings.limits.fetch_wait_ms_max)
        if settings.is_touched(request.after, _scopes(request)) or wait_ms <= 0:
            return self._found(request, asked)
        timer = self._node.timers.call_after(wait_ms / 1000, partial(self._wait_over, place))
        self._waiting[place] = _Waiting(asked, request, timer)
        return LATER

    def _look(self, place: _Place, each: _Waiting) -> None:
        """Answer a request if what it waits for has changed."""
        if self._node.catalog.settings.is_touched(each.request.after, _scopes(each.request)):
            self._end_wait(place, each)

    def _wait_over(self, place: _Place) -> None:
        """The wait is over, as that of others may be at this moment."""
        each = self._waiting[place]
        self._node.turns.make(place[0], partial(self._end_wait, place, each))

    def _end_wait(self, place: _Place, each: _Waiting) -> None:
        if self._waiting.get(place) is each:
            del self._waiting[place]
            each.timer.cancel()
            each.asked.answer(unread(place[0]) or self._found(each.request, each.asked))

    def _found(self, request: FindSettings, asked: OpenRequest) -> FoundSettings:
        settings = self._node.catalog.settings
        wanted = _scopes(request)
        sees = self._node.gate.sees(asked.connection, Resource.TOPIC)
        views = [
            _view(each)
            for each in settings.all(wanted)
            if each.scope is not Scope.TOPIC or sees(each.of)
        ]
        return FoundSettings(settings.version, views)

    def _history(self, request: FindSettingsHistory, group: Group, asked: OpenRequest) -> Answer:
        return asked.read(group, lambda: history_page(self._node.catalog.settings, request))


def history_page(settings: SettingsState, request: FindSettingsHistory) -> FoundSettingsHistory:
    """Changes after the version that the request names, the oldest first."""
    after = max(request.after, 0)
    found = _changes_after(settings, after)
    views, last = first_page(found, _change_bytes)
    return FoundSettingsHistory(views, is_cut=last is not None)


def _changes_after(settings: SettingsState, after: int) -> Iterator[tuple[int, SettingsChangeView]]:
    for change in settings.history:
        if change.version > after:
            yield change.version, _change_view(change)


def _change_view(change: SettingsChange) -> SettingsChangeView:
    before, after = ([_view(each) for each in side] for side in (change.before, change.after))
    return SettingsChangeView(change.version, change.at_ms, change.user, before, after)


def _change_bytes(view: SettingsChangeView) -> int:
    return SETTING_BYTES * 2 * (1 + len(view.after))


def _view(setting: Setting) -> SettingView:
    return SettingView(setting.scope.value, setting.of, setting.name, setting.value)


def _scopes(request: FindSettings) -> set[tuple[str, str]]:
    return {(each.scope, each.of) for each in request.scopes}
