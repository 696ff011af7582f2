"""Requests about access: logins, and what administrators ask of users, rules, quotas and acts."""

from collections.abc import Iterable, Iterator

import msgspec

from raftmq.access.rules import OPERATIONS, Act, Operation, Resource, Rule
from raftmq.access.tokens import has_ended
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group
from raftmq.broker.serve.answers import Answer, OpenRequest
from raftmq.broker.serve.dispatcher import frame_route, group_route, system_group
from raftmq.broker.serve.pages import PAGE_BYTES, first_page
from raftmq.broker.service import Service
from raftmq.errors import Reason
from raftmq.machine.catalog.access import AccessState, Token, User
from raftmq.machine.catalog.audit import Audit, Entry
from raftmq.machine.catalog.quotas import EVERY, QuotaState, SubjectKind
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
    """Users by name, after the entry that the request names. `now_ms` is the node's clock."""
    tokens = _by_user(access.tokens.values())
    wanted = access.users if request.name is None else {request.name} & access.users.keys()
    names = sorted(name for name in wanted if name > request.after)
    views, last = first_page(
        ((name, _user_view(access.users[name], tokens.get(name, []), now_ms)) for name in names),
        _user_bytes,
    )
    return FoundUsers(views, is_cut=last is not None)


def _user_bytes(view: UserView) -> int:
    tokens = sum(_ENTRY_BYTES + len(each.note.encode()) for each in view.tokens)
    return _ENTRY_BYTES + len(view.name) + tokens


def _by_user(tokens: Iterable[Token]) -> dict[str, list[Token]]:
    found: dict[str, list[Token]] = {}
    for token in tokens:
        found.setdefault(token.user, []).append(token)
    return found


def _user_view(user: User, tokens: list[Token], now_ms: int) -> UserView:
    return UserView(
        name=user.name,
        passwords=sum(not has_ended(keys.until_ms, now_ms) for keys in user.keys),
        salt=user.salt,
        iterations=user.iterations,
        created_ms=user.created,
        tokens=[
            TokenView(each.id, each.until_ms, each.created, each.note)
            for each in sorted(tokens, key=lambda token: token.id)
        ],
        old_until_ms=max(
            (keys.until_ms for keys in user.keys if not has_ended(keys.until_ms, now_ms)), default=0
        ),
    )


def rules_page(access: AccessState, request: FindRules) -> FoundRules:
    """Rules by user and text, after the entry that the request names."""
    rules = _rules_after(access, request)
    views, last = first_page(((rule, _rule_view(rule)) for rule in rules), _rule_bytes)
    return FoundRules(views, is_cut=last is not None)


def _rule_bytes(view: RuleView) -> int:
    return _ENTRY_BYTES + len(view.user) + 2 * len(view.text)


def _rules_after(access: AccessState, request: FindRules) -> Iterator[Rule]:
    after = (request.after_user, request.after_text)
    users = access.rules.users() if request.user is None else [request.user]
    for user in users:
        if user >= request.after_user:
            yield from (rule for rule in access.rules.of_user(user) if (user, str(rule)) > after)


def audit_page(audit: Audit, request: FindAudit) -> FoundAudit:
    """Entries of the audit log, the newest first, before the entry that the request names; and how
    many are gone (`FoundAudit.dropped`)."""
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
    found = _quotas_after(quotas, request)
    views, last = first_page(((view.name, view) for view in found), _quota_bytes)
    return FoundQuotas(views, is_cut=last is not None)


def _quota_bytes(view: QuotaView) -> int:
    return _ENTRY_BYTES + len(view.name)


def _quotas_after(quotas: QuotaState, request: FindQuotas) -> Iterator[QuotaView]:
    after = (request.after_kind, request.after_name)
    for kind in sorted(SubjectKind):
        held = quotas.of(kind) if request.kind in (None, kind) else {}
        wanted = held if request.name is None else {request.name, EVERY} & held.keys()
        for name in sorted(wanted):
            if (kind, name) > after:
                yield QuotaView(kind, name, *msgspec.structs.astuple(held[name]))
