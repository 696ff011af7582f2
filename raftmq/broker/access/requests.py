"""Requests about access: logins, and what administrators ask of users, rules, quotas and acts."""

from collections.abc import Iterable, Iterator

import msgspec

from raftmq.access.rules import OPERATIONS, Act, Operation, Resource, Rule
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.answers import Answer, OpenRequest
from raftmq.broker.serve.dispatcher import frame_route, group_route, system_group
from raftmq.broker.serve.pages import PAGE_BYTES
from raftmq.broker.service import Service
from raftmq.errors import Reason
from raftmq.machine.catalog.access import AccessState, Token, User
from raftmq.machine.catalog.audit import Audit, Entry
from raftmq.machine.catalog.quotas import EVERY, Quota, QuotaState, SubjectKind
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
    TokenView,
    UserView,
)
from raftmq.wire.messages import ErrorReply, FrameKind

from .gate import Gate

_ENTRY_BYTES = 80
"""About the bytes of an entry beside its texts."""


class AccessRequests(Service):
    """The handlers of these requests."""

    def __init__(self, node: Host, gate: Gate) -> None:
        self._node = node
        self._gate = gate
        system = system_group(node)
        self.routes = {
            FrameKind.LOG_IN: frame_route(gate.log_in),
            FrameKind.USERS: group_route(FindUsers, system, self._users),
            FrameKind.RULES: group_route(FindRules, system, self._rules),
            FrameKind.JUDGE: group_route(JudgeAct, system, self._judge),
            FrameKind.AUDIT: group_route(FindAudit, system, self._audit),
            FrameKind.QUOTAS: group_route(FindQuotas, system, self._quotas),
        }

    def _users(self, request: FindUsers, group: Group, asked: OpenRequest) -> Answer:
        return asked.read(
            group,
            lambda: users_page(self._node.catalog.access, request, self._node.world.now_ms()),
        )

    def _rules(self, request: FindRules, group: Group, asked: OpenRequest) -> Answer:
        return asked.read(group, lambda: rules_page(self._node.catalog.access, request))

    def _quotas(self, request: FindQuotas, group: Group, asked: OpenRequest) -> Answer:
        return asked.read(group, lambda: quotas_page(self._node.catalog.quotas, request))

    def _judge(self, request: JudgeAct, group: Group, asked: OpenRequest) -> Answer:
        try:
            act = Act(Operation(request.operation), Resource(request.resource), request.name)
        except ValueError as error:
            return ErrorReply(Reason.BAD_ARGUMENT.value, f"no such act: {error}")
        operations = OPERATIONS[act.resource] - {Operation.ANY}
        if act.operation not in operations:
            known = ", ".join(sorted(operations))
            message = f"there is no {request.operation!r} of a {request.resource}, only {known}"
            return ErrorReply(Reason.BAD_ARGUMENT.value, message)

        def judged() -> Judged:
            verdict = self._gate.judge(request.user, act)
            rule = None if verdict.rule is None else _rule_view(verdict.rule)
            return Judged(verdict.is_allowed, self._gate.why(request.user, act), rule)

        return asked.read(group, judged)

    def _audit(self, request: FindAudit, group: Group, asked: OpenRequest) -> Answer:
        return asked.read(group, lambda: audit_page(self._node.catalog.audit, request))


def users_page(access: AccessState, request: FindUsers, now_ms: int) -> FoundUsers:
    """Users by name, after the entry that the request names."""
    views: list[UserView] = []
    size = 0
    tokens = _by_user(access.tokens.values())
    wanted = access.users if request.name is None else {request.name} & access.users.keys()
    for name in sorted(name for name in wanted if name > request.after):
        if size >= PAGE_BYTES:
            return FoundUsers(views, is_cut=True)
        views.append(_user_view(access.users[name], tokens.get(name, []), now_ms))
        size += _ENTRY_BYTES + len(name)
        size += sum(_ENTRY_BYTES + len(each.note.encode()) for each in views[-1].tokens)
    return FoundUsers(views)


def _by_user(tokens: Iterable[Token]) -> dict[str, list[Token]]:
    found: dict[str, list[Token]] = {}
    for token in tokens:
        found.setdefault(token.user, []).append(token)
    return found


def _user_view(user: User, tokens: list[Token], now_ms: int) -> UserView:
    return UserView(
        name=user.name,
        passwords=sum(not keys.until_ms or now_ms < keys.until_ms for keys in user.keys),
        salt=user.salt,
        iterations=user.iterations,
        created_ms=user.created,
        tokens=[
            TokenView(each.id, each.until_ms, each.created, each.note)
            for each in sorted(tokens, key=lambda token: token.id)
        ],
    )


def rules_page(access: AccessState, request: FindRules) -> FoundRules:
    """Rules by user and text, after the entry that the request names."""
    views: list[RuleView] = []
    size = 0
    for rule in _rules_after(access, request):
        if size >= PAGE_BYTES:
            return FoundRules(views, is_cut=True)
        views.append(_rule_view(rule))
        size += _ENTRY_BYTES + len(rule.user) + 2 * len(views[-1].text)
    return FoundRules(views)


def _rules_after(access: AccessState, request: FindRules) -> Iterator[Rule]:
    after = (request.after_user, request.after_text)
    users = access.rules.users() if request.user is None else [request.user]
    for user in users:
        if user >= request.after_user:
            yield from (rule for rule in access.rules.of_user(user) if (user, str(rule)) > after)


def audit_page(audit: Audit, request: FindAudit) -> FoundAudit:
    """Entries of the audit log, the newest first."""
    views: list[AuditView] = []
    size = gone = 0
    before = min(request.before or audit.last + 1, audit.last + 1)
    after = max(request.after, 0)
    found = audit.between(after, before)
    for count, entry in enumerate(found, 1):
        if request.user is not None and entry.act.user != request.user:
            continue
        if size >= PAGE_BYTES or 0 < request.limit <= len(views):
            return FoundAudit(views, gone, is_cut=True)
        views.append(_audit_view(entry))
        gone = before - entry.number - count
        size += _ENTRY_BYTES + sum(
            len(text.encode()) for text in msgspec.structs.astuple(entry.act)
        )
    return FoundAudit(views, max(before - 1 - after, 0) - len(found))


def _audit_view(entry: Entry) -> AuditView:
    act = entry.act
    return AuditView(
        number=entry.number,
        at_ms=entry.at_ms,
        user=act.user,
        address=act.address,
        what=act.what,
        resource=act.resource,
        name=act.name,
        detail=act.detail,
        result=entry.result,
    )


def _rule_view(rule: Rule) -> RuleView:
    return RuleView(
        user=rule.user,
        is_allowed=rule.is_allowed,
        operation=rule.operation.value,
        resource=rule.resource.value,
        name=rule.name,
        is_prefix=rule.is_prefix,
        text=str(rule),
    )


def quotas_page(quotas: QuotaState, request: FindQuotas) -> FoundQuotas:
    """Quotas by kind and name, after the entry that the request names."""
    views: list[QuotaView] = []
    size = 0
    for kind, name, quota in _quotas_after(quotas, request):
        if size >= PAGE_BYTES:
            return FoundQuotas(views, is_cut=True)
        views.append(QuotaView(kind, name, *msgspec.structs.astuple(quota)))
        size += _ENTRY_BYTES + len(name)
    return FoundQuotas(views)


def _quotas_after(
    quotas: QuotaState, request: FindQuotas
) -> Iterator[tuple[SubjectKind, str, Quota]]:
    after = (request.after_kind, request.after_name)
    for kind in sorted(SubjectKind):
        held = quotas.of(kind) if request.kind in (None, kind) else {}
        wanted = held if request.name is None else {request.name, EVERY} & held.keys()
        for name in sorted(wanted):
            if (kind, name) > after:
                yield kind, name, held[name]
