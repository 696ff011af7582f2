"""The administrative calls about dynamic settings."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import anyio

from raftmq.client.arguments import member_of, require, require_text, typed
from raftmq.client.routing.connection import Lost
from raftmq.client.routing.pushed_settings import LATE_SECONDS, WAIT_MS
from raftmq.client.routing.refusals import RETRIED, exception_of, refusal_of
from raftmq.client.routing.requests import ask_for_pages, ask_leader, change_catalog, seconds_left
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.settings import PutSettings, Scope, Setting, Value
from raftmq.machine.queue_numbers import SYSTEM_GROUP
from raftmq.wire.codec import pack, unpack
from raftmq.wire.messages import FrameKind
from raftmq.wire.settings import (
    FindSettings,
    FindSettingsHistory,
    FoundSettings,
    FoundSettingsHistory,
    SettingsChangeView,
    SettingScope,
)


class Difference(NamedTuple):
    """Settings that differ between a version and now."""

    version: int
    """The version now."""
    changes: list[tuple[Setting, Setting]]
    """Each setting as it was then, and as it is now, by scope and name."""


@typed()
class Settings:
    """Settings that change while the cluster runs. Made by `Client.settings`; for operators.

    A setting of `cluster` holds for all nodes, one of `node` for one, and goes over what the node's
    file says; those of `topic` and `client` are obeyed by producers and consumers. `docs/config.md`
    lists them. Every call may be repeated safely; each takes `timeout` and raises as the calls of
    `Admin`.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    async def get(
        self, scope: str | None = None, of: str = "", *, timeout: float | None = None
    ) -> FoundSettings:
        """All settings, or those of one scope, with the version of all of them.

        Args:
            scope: `cluster`, `node`, `topic` or `client`; None: all settings.
            of: the number of the node, or the name of the topic or client; `*`: every client.
            timeout: seconds; None: the client's default.
        """
        scopes = [] if scope is None else [SettingScope(_scope(scope).value, of)]
        return await ask_leader(self._router, FindSettings(scopes), FoundSettings, timeout=timeout)

    async def put(
        self,
        values: Mapping[str, Any],
        *,
        scope: str = "cluster",
        of: str = "",
        seen: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Put settings of one scope, as one change; returns the version of all settings.

        Args:
            values: name, as `log.retention_ms`, to its value; None takes the setting out.
            scope: `cluster`, `node`, `topic` or `client`.
            of: the number of the node, or the name of the topic or client; `*`: every client.
            seen: the version that the caller saw: refused if there is another by now.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT`; the text says what would be right.
        """
        settings = [Setting(_scope(scope), of, *each) for each in sorted(_checked(values).items())]
        return await self._put(settings, -1 if seen is None else seen, timeout)

    async def history(
        self, *, after: int = 0, timeout: float | None = None
    ) -> list[SettingsChangeView]:
        """The changes after a version, the oldest first, as far as they are kept."""
        changes: list[SettingsChangeView] = []
        question = FindSettingsHistory(after)
        async for page in ask_for_pages(
            self._router, question, FoundSettingsHistory, timeout=timeout
        ):
            changes += page.changes
        return changes

    async def rollback(self, version: int, *, timeout: float | None = None) -> int:
        """Make the settings what they were at a version, as a new change; returns its version.

        Raises:
            Rejected: `BAD_ARGUMENT`: there was no such version, or it is no longer known what the
                settings were then; or somebody else changed them meanwhile.
        """
        left = seconds_left(self._router, timeout)
        undone = await self.difference(version, timeout=left())
        if not undone.changes:
            return undone.version
        back = [change[0] for change in undone.changes]
        return await self._put(back, undone.version, left())

    async def difference(self, version: int, *, timeout: float | None = None) -> Difference:
        """What the settings were at a version, where they are others now. Raises as `rollback`."""
        left = seconds_left(self._router, timeout)
        found = await self.get(timeout=left())
        require(
            0 <= version <= found.version,
            f"the settings have versions up to {found.version}, no {version}",
        )
        changes = await self.history(after=version, timeout=left())
        if len(changes) < found.version - version:
            message = f"the changes after version {version} are not all kept"
            raise Rejected(Reason.BAD_ARGUMENT, message)
        first: dict[tuple[str, str, str], Setting] = {}
        for change in changes:
            if change.version > found.version:
                break
            for each in change.before:
                place = each.scope, each.of, each.name
                first.setdefault(place, Setting(Scope(each.scope), *place[1:], each.value))
        now = {(each.scope, each.of, each.name): each.value for each in found.settings}
        pairs = [
            (setting, Setting(setting.scope, setting.of, setting.name, now.get(place)))
            for place, setting in sorted(first.items())
            if setting.value != now.get(place)
        ]
        return Difference(found.version, pairs)

    async def wait_for_change(self, after: int) -> list[SettingsChangeView]:
        """The changes after a version, as soon as there are some, however long it takes.

        Raises:
            Rejected: `DENIED`.
            Unavailable: no node answered for the client's default timeout.
        """
        while not (changes := await self.history(after=after)):
            await self._wait(after)
        return changes

    async def _wait(self, version: int) -> None:
        """Wait until the settings have a higher version, or for a minute."""
        question = pack(FindSettings([], version, WAIT_MS))
        with anyio.move_on_after(WAIT_MS / 1000 + LATE_SECONDS):
            finding = self._router.leader(SYSTEM_GROUP)
            connection = await self._router.within(None, finding, "to watch the settings")
            answer = await connection.call(FrameKind.SETTINGS, question, is_patient=True)
            if isinstance(answer, Lost):
                return
            refusal = refusal_of(answer)
            if refusal is None:
                unpack(FoundSettings, answer.header)
            elif refusal.code in RETRIED:
                await anyio.sleep(self._router.delay(5))
            else:
                raise exception_of(refusal)

    async def _put(self, settings: list[Setting], seen: int, timeout: float | None) -> int:
        command = PutSettings(settings, seen)
        return int(await change_catalog(self._router, command, timeout))


def _scope(scope: str) -> Scope:
    return member_of(Scope, scope, "scope")


def _checked(values: Mapping[str, Any]) -> dict[str, Value | None]:
    require(bool(values), "name a setting")
    for name, value in values.items():
        require_text(name, "the name of a setting")
        is_value = value is None or isinstance(value, bool | int | str)
        require(is_value, f"{name} is a whole number, True, False or a text, not {value!r:.80}")
    return dict(values)
