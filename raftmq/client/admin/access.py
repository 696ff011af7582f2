"""Users, tokens, rules of access, quotas and the audit log, for administrators."""

import secrets
from functools import partial
from typing import NamedTuple

import anyio.to_thread

from raftmq.access.rules import Operation, Resource, Rule
from raftmq.access.tokens import ID_BYTES, SECRET_BYTES, digest_of, draw_token, parts_of
from raftmq.client.arguments import member_of, require, require_seconds, require_text, typed
from raftmq.client.routing.requests import ask_for_pages, ask_leader, change_catalog, seconds_left
from raftmq.client.routing.router import Router
from raftmq.client.world import ClientWorld
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.access import (
    SALT_BYTES_MIN,
    DropRule,
    DropToken,
    DropUser,
    PutRule,
    PutToken,
    PutUser,
)
from raftmq.machine.catalog.quotas import DropQuota, PutQuota, Quota, Subject, SubjectKind
from raftmq.wire.access import (
    AuditView,
    FindAudit,
    FindQuotas,
    FindRules,
    FindUsers,
    FoundAudit,
    FoundQuotas,
    FoundRules,
    FoundUsers,
    JudgeAct,
    Judged,
    QuotaView,
    RuleView,
    UserView,
)

PASSWORD_CHARACTERS_MIN = 8
"""The shortest password."""
TOKEN_SECONDS = 90 * 24 * 3600.0
"""Default lifetime of a token."""
KEEP_OLD_DAYS_MAX = 30
"""The longest for which the previous password may stay valid: a leaked password must end."""


class AuditLog(NamedTuple):
    """Entries of the audit log."""

    entries: list[AuditView]
    """The oldest first."""
    dropped: int
    """Number of entries after `after` that are no longer kept, of all users; with `limit` only as
    far as the log was read."""


@typed()
class Access:
    """Users, tokens, rules, quotas and the audit log. Made by `Client.access`; for administrators.

    Every call may be repeated safely, but for `make_token`. Each takes `timeout` and raises as the
    calls of `Admin`; besides `DENIED` if the caller may not administer the cluster. Cancelling a
    change leaves it done or not done.
    """

    def __init__(self, router: Router, world: ClientWorld) -> None:
        self._router = router
        self._world = world

    async def put_user(
        self,
        name: str,
        password: str | None = None,
        *,
        keep_old: float = 0.0,
        timeout: float | None = None,
    ) -> None:
        """Create a user, or change its password. The password itself never leaves this process.

        Args:
            name: 1 to 127 of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`.
            password: 8 characters or more; None: the user has none, and acts by tokens.
            keep_old: seconds for which the password before stays valid, so that programs can be
                given the new one; 30 days at the most.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT`; the text says what would be right.
        """
        check_keep_old(keep_old)
        left = seconds_left(self._router, timeout)
        if password is None:
            await change_catalog(self._router, PutUser(name), left())
            return
        # Loaded for passwords alone: it takes a third of the time in which the client is imported.
        from raftmq.access.scram import ITERATIONS, length_of, make_keys

        salt, iterations, old_until_ms = secrets.token_bytes(SALT_BYTES_MIN), ITERATIONS, 0
        if keep_old:
            old_until_ms = self._world.now_ms() + round(keep_old * 1000)
            for user in await self.users(name, timeout=left()):
                salt, iterations = user.salt or salt, user.iterations or iterations
        try:
            if length_of(password) < PASSWORD_CHARACTERS_MIN:
                raise ValueError(f"a password has {PASSWORD_CHARACTERS_MIN} characters at least")
            keys = await anyio.to_thread.run_sync(partial(make_keys, password, salt, iterations))
        except ValueError as error:
            raise Rejected(Reason.BAD_ARGUMENT, str(error)) from None
        command = PutUser(name, salt, iterations, *keys, old_until_ms)
        await change_catalog(self._router, command, left())

    async def drop_user(self, name: str, *, timeout: float | None = None) -> bool:
        """Delete a user with its tokens and rules. Connections by password or token end within a
        second; one by certificate ends if it used a right that is gone. False: there was no such
        user, and no rule about it."""
        return bool(await change_catalog(self._router, DropUser(name), timeout))

    async def users(
        self, name: str | None = None, *, timeout: float | None = None
    ) -> list[UserView]:
        """All users by name with their tokens, or the one of this name."""
        pages = ask_for_pages(self._router, FindUsers(name), FoundUsers, timeout=timeout)
        return [user async for page in pages for user in page.users]

    async def make_token(
        self,
        user: str,
        *,
        lifetime: float | None = TOKEN_SECONDS,
        note: str = "",
        timeout: float | None = None,
    ) -> str:
        """A new token of a user, which a program shows in place of a password. It cannot be read
        again: the cluster keeps a digest.

        Args:
            user: the user's name.
            lifetime: seconds; None: until it is revoked.
            note: the purpose, for people; up to 200 characters.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `UNKNOWN_USER`, `BAD_ARGUMENT`.
        """
        until_ms = 0
        if lifetime is not None:
            require_seconds(lifetime, "lifetime")
            until_ms = self._world.now_ms() + round(lifetime * 1000)
        token = draw_token(secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES))
        id_, secret = parts_of(token)
        command = PutToken(user, id_, digest_of(secret), until_ms, note)
        await change_catalog(self._router, command, timeout)
        return token

    async def revoke_token(self, token_id: str, *, timeout: float | None = None) -> bool:
        """Revoke a token by its public part; its connections are ended within a second. False:
        there was no such token."""
        return bool(await change_catalog(self._router, DropToken(token_id), timeout))

    async def allow(
        self,
        user: str,
        operation: str,
        resource: str,
        name: str = "",
        *,
        timeout: float | None = None,
    ) -> bool:
        """Add a rule that allows something; it holds within a second. False: it was there.

        Args:
            user: the user's name, or `*`: every user.
            operation: `read`, `pop`, `write`, `describe`, `admin` or `any`.
            resource: `topic`, `group` or `cluster`.
            name: the resource's name, or with `*` at its end, the beginning of names; empty for
                the cluster.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT`; the text says what would be right.
        """
        rule = rule_of(user, operation, resource, name, is_allowed=True)
        return bool(await change_catalog(self._router, PutRule(rule), timeout))

    async def deny(
        self,
        user: str,
        operation: str,
        resource: str,
        name: str = "",
        *,
        timeout: float | None = None,
    ) -> bool:
        """Add a rule that denies something, whatever allows it; arguments as `allow`. Connections
        that have used the denied operation end within a second. False: the rule was there."""
        rule = rule_of(user, operation, resource, name, is_allowed=False)
        return bool(await change_catalog(self._router, PutRule(rule), timeout))

    async def drop_rule(self, rule: RuleView, *, timeout: float | None = None) -> bool:
        """Remove a rule; False: it was not there."""
        found = Rule(
            rule.user,
            rule.is_allowed,
            Operation(rule.operation),
            Resource(rule.resource),
            rule.name,
            rule.is_prefix,
        )
        return bool(await change_catalog(self._router, DropRule(found), timeout))

    async def rules(
        self, user: str | None = None, *, timeout: float | None = None
    ) -> list[RuleView]:
        """All rules by user, or those of one user; `*`: those of every user."""
        pages = ask_for_pages(self._router, FindRules(user), FoundRules, timeout=timeout)
        return [rule async for page in pages for rule in page.rules]

    async def judge(
        self,
        user: str,
        operation: str,
        resource: str,
        name: str = "",
        *,
        timeout: float | None = None,
    ) -> Judged:
        """Whether a user may do something, and why.

        Raises:
            Rejected: `BAD_ARGUMENT`, there is no such operation or resource.
        """
        question = JudgeAct(user, operation, resource, name)
        return await ask_leader(self._router, question, Judged, timeout=timeout)

    async def put_quota(
        self,
        kind: str,
        name: str,
        *,
        write_bytes: int = 0,
        write_messages: int = 0,
        read_bytes: int = 0,
        read_messages: int = 0,
        connections: int = 0,
        requests: int = 0,
        topics: int = 0,
        queues: int = 0,
        groups: int = 0,
        in_flight: int = 0,
        timeout: float | None = None,
    ) -> bool:
        """Give a user or topic a quota, in place of the one before; it holds within a second, also
        for requests that wait. False: it has this quota already.

        Each node counts for itself, but for what a user owns. Without an amount, or with 0, there
        is no bound on it. Over a quota requests wait, and none is lost: see `Client.throttled`. A
        user that owns as much as it may creates no more (`OVER_QUOTA`).

        Args:
            kind: `user` or `topic`.
            name: the name, or `*`: each one without a quota of its own.
            write_bytes: bytes that are sent to a node in a second.
            write_messages: messages that are sent to a node in a second.
            read_bytes: bytes that a node sends out in a second.
            read_messages: messages that a node sends out in a second.
            connections: open connections of the user to a node.
            requests: requests of the user that wait for an answer of a node, those that wait for
                messages among them.
            topics: topics that the user owns, as it created them, in the whole cluster.
            queues: queues of these topics.
            groups: consumer groups that the user owns, in the whole cluster.
            in_flight: messages that consumers which pop have in hand or have asked for: the user's
                consumers, or all consumers of the topic.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT`; the text says what would be right.
        """
        quota = Quota(
            write_bytes=write_bytes,
            write_messages=write_messages,
            read_bytes=read_bytes,
            read_messages=read_messages,
            connections=connections,
            requests=requests,
            topics=topics,
            queues=queues,
            groups=groups,
            in_flight=in_flight,
        )
        command = PutQuota(subject_of(kind, name), quota)
        return bool(await change_catalog(self._router, command, timeout))

    async def drop_quota(self, kind: str, name: str, *, timeout: float | None = None) -> bool:
        """Remove the quota of a user or topic; that of `*` holds for it then. False: it had
        none of its own."""
        command = DropQuota(subject_of(kind, name))
        return bool(await change_catalog(self._router, command, timeout))

    async def quotas(
        self, kind: str | None = None, name: str | None = None, *, timeout: float | None = None
    ) -> list[QuotaView]:
        """All quotas by kind and name; those of a kind; or, with a name, the quota of the name and
        that of `*`."""
        question = FindQuotas(kind, name)
        pages = ask_for_pages(self._router, question, FoundQuotas, timeout=timeout)
        return [quota async for page in pages for quota in page.quotas]

    async def audit(
        self,
        *,
        after: int = 0,
        user: str | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AuditLog:
        """Acts of administration: who did what, from where, when, with which result.

        The cluster keeps 10,000. Where there are more, the user with most entries loses its oldest
        one. An entry with the result `begun` may get another one later; all else in an entry stays.

        Args:
            after: only entries with a higher number, as after the last one of an earlier call.
            user: only acts of this user.
            limit: only the newest ones, up to this many; None: all.
            timeout: seconds; None: the client's default.

        Raises:
            Rejected: `BAD_ARGUMENT`, a number is out of its range.
        """
        require(after >= 0, f"after is the number of an entry, or 0, not {after}")
        require(limit is None or limit >= 1, f"limit is 1 or more, not {limit}")
        entries: list[AuditView] = []
        dropped = 0
        question = FindAudit(after, user, limit or 0)
        async for page in ask_for_pages(self._router, question, FoundAudit, timeout=timeout):
            entries += page.entries
            dropped += page.dropped
            if limit is not None and len(entries) >= limit:
                break
        return AuditLog(entries[:limit][::-1], dropped)


def check_keep_old(seconds: float) -> None:
    """Refuse a `keep_old` that is not 0 to `KEEP_OLD_DAYS_MAX` days, in seconds.

    Raises:
        Rejected: `BAD_ARGUMENT`.
        WrongType: it is no number.
    """
    require_seconds(seconds, "keep_old")
    is_short = seconds <= KEEP_OLD_DAYS_MAX * 86_400
    require(is_short, f"the previous password stays valid for {KEEP_OLD_DAYS_MAX} days at the most")


def rule_of(user: str, operation: str, resource: str, name: str, *, is_allowed: bool) -> Rule:
    """The rule of an administrator's words; see `Access.allow`.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no such operation or resource.
    """
    require_text(name, "name")
    operation_ = member_of(Operation, operation, "operation")
    resource_ = member_of(Resource, resource, "resource")
    is_prefix = name.endswith("*")
    return Rule(user, is_allowed, operation_, resource_, name.removesuffix("*"), is_prefix)


def subject_of(kind: str, name: str) -> Subject:
    """The subject of an administrator's words.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no such kind.
    """
    require_text(name, "name")
    return Subject(member_of(SubjectKind, kind, "kind of quota"), name)
