"""The administrative calls about dynamic settings."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import anyio
from msgspec.structs import replace

from raftmq.client.arguments import member_of, require, require_text, typed
from raftmq.client.routing.connection import Lost
from raftmq.client.routing.pushed_settings import LATE_SECONDS_MAX, WAIT_MS
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
    SettingView,
)

_SLOW = 5
"""An attempt, as for `Router.delay`: the longest wait."""


class Difference(NamedTuple):
    """Settings that differ between a version and now."""

    version: int
    """The version now."""
    changes: list[tuple[SettingView, SettingView]]
    """Each setting as it was then, and as it is now, by scope and name."""


@typed()
class Settings:
    """Settings that change while the cluster runs. Made by `Client.settings`; for operators.

    A setting of `cluster` holds for all nodes, one of `node` for one, and goes over what the node's
    file says; those of `topic` and `client` are obeyed by producers and consumers. `docs/config.md`
    lists them. Calls may be repeated safely; a repeated `put` with `seen` is refused if the first
    one was carried out. All but `wait_for_change` take `timeout`, and raise as the calls of
    `Admin`. Cancelling a change leaves it done or not done.
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
            Rejected: `BAD_ARGUMENT`; the text says what would be right. `CHANGED_MEANWHILE`: the
                settings have another version than `seen`.
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

    async def rollback(
        self, version: int, *, seen: int | None = None, timeout: float | None = None
    ) -> int:
        """Make the settings what they were at a version, as a new change; returns its version.

        Args:
            version: the version, 0: nothing was set.
            seen: the version that the caller saw: refused if there is another by now.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT`: there was no such version, or it is no longer known what the
                settings were then. `CHANGED_MEANWHILE`: another change came between.
        """
        left = seconds_left(self._router, timeout)
        undone = await self.difference(version, timeout=left())
        if not undone.changes:
            return undone.version
        back = [
            Setting(Scope(then.scope), then.of, then.name, then.value) for then, _ in undone.changes
        ]
        return await self._put(back, undone.version if seen is None else seen, left())

    async def difference(self, version: int, *, timeout: float | None = None) -> Difference:
        """The settings that differ between a version and now. Raises as `rollback`."""
        left = seconds_left(self._router, timeout)
        found = await self.get(timeout=left())
        require(
            0 <= version <= found.version,
            f"there is no version {version} of the settings, only 0 to {found.version}",
        )
        changes = await self.history(after=version, timeout=left())
        if changes and changes[0].version > version + 1:
            message = f"the changes after version {version} are no longer all kept"
            oldest = changes[0].version - 1
            raise Rejected(Reason.BAD_ARGUMENT, f"{message}: name {oldest} or a later version")
        first: dict[tuple[str, str, str], SettingView] = {}
        for change in changes:
            if change.version > found.version:
                break
            for each in change.before:
                first.setdefault((each.scope, each.of, each.name), each)
        now = {(each.scope, each.of, each.name): each.value for each in found.settings}
        pairs = [
            (then, replace(then, value=now.get(key)))
            for key, then in sorted(first.items())
            if then.value != now.get(key)
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
        """Wait until the settings have a higher version, or for half a minute."""
        question = pack(FindSettings([], version, WAIT_MS))
        with anyio.move_on_after(WAIT_MS / 1000 + LATE_SECONDS_MAX):
            finding = self._router.leader(SYSTEM_GROUP)
            connection = await self._router.within(None, finding, "to watch the settings")
            answer = await connection.call(FrameKind.SETTINGS, question, is_patient=True)
            if isinstance(answer, Lost):
                return
            refusal = refusal_of(answer)
            if refusal is not None and refusal.code not in RETRIED:
                raise exception_of(refusal)
            if refusal is not None or unpack(FoundSettings, answer.header).version <= version:
                # Another wait of this client may have ended this one; a watcher need not be quick.
                await anyio.sleep(self._router.delay(_SLOW))

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
