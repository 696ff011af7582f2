"""`raftmq acl`: the rules of access, and the verdict on one act of a user."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.names import USER
from raftmq.cli.options import argument, with_options
from raftmq.cli.output import Note, Result, Table, note, with_output
from raftmq.cli.session import Session, with_session
from raftmq.words import counted

from .known import EVERYBODY, IS_OFF, is_off, unknown_user

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.wire.access import Judged, RuleView

# As in `raftmq.access.rules`, whose import would slow down the help.
OPERATIONS = ("read", "pop", "write", "describe", "admin")
"""What a user does to a resource."""
ANY = "any"
"""In a rule: all of them."""
RESOURCES = ("topic", "group", "cluster")
"""The kinds of things that rules are about."""
ALLOW, DENY = "allow", "deny"


@dataclass(frozen=True, slots=True)
class _Words:
    """The arguments behind `allow` and `deny`."""

    user: str = argument(type=USER)
    operation: str = argument(type=click.Choice((*OPERATIONS, ANY)))
    resource: str = argument(type=click.Choice(RESOURCES))
    name: str = argument(default="")
    """The resource's name, or the beginning of names with `*` after it; empty for the cluster."""

    def __str__(self) -> str:
        return f"{self.user} {self.operation} {self.resource} {self.name}".rstrip()

    def check(self) -> None:
        """Refuse a name too many or too few.

        Raises:
            click.UsageError: a topic or group has no name, or the cluster has one.
        """
        if self.resource == "cluster" and self.name:
            raise click.UsageError("the cluster has no name: leave out NAME")
        if self.resource != "cluster" and not self.name:
            raise click.UsageError(f"name the {self.resource}, or all with '*'")


@dataclass(frozen=True, slots=True)
class _Question(_Words):
    """The arguments of `check`: one operation on one resource."""

    operation: str = argument(type=click.Choice(OPERATIONS))

    def check_one(self) -> None:
        """Refuse a question about several resources.

        Raises:
            click.UsageError: there is no name of one resource.
        """
        if self.name.endswith("*") or (self.resource != "cluster" and not self.name):
            raise click.UsageError(f"name one {self.resource} to ask about")
        self.check()


@click.group(cls=HintedGroup)
def acl() -> None:
    """Rules of access: allow, deny, drop and list them; check an act.

    A rule is about a USER, or '*' for all, and the NAME of a topic or group; 'orders-*' means all
    names that begin with orders-. A rule that denies wins over those that allow. Changes hold
    within a second.

    \b
    read      read a topic by offset or key; take part in a group; see the events of the cluster
    pop       get messages of a topic from a group that pops; read allows it, too
    write     send to a topic; begin and decide transactions of a producer group
    describe  see that a resource exists, with its settings; allowed with any other
    admin     create, change and delete a resource; of the cluster: nodes, users,
              rules, quotas, the audit log
    any       in a rule: all of these

    \b
    raftmq acl allow billing read topic 'orders-*'
    raftmq acl allow billing read group billing
    raftmq acl deny '*' any topic orders-secret
    raftmq acl check billing read topic orders-2026
    """


@acl.command()
@with_options(_Words)
@with_session
def allow(session: Session, options: _Words) -> None:
    """Add a rule that allows USER an operation on a resource.

    \b
    raftmq acl allow alice write topic orders
    raftmq acl allow alice describe cluster
    """
    _put(session, options, ALLOW)


@acl.command()
@with_options(_Words)
@with_session
def deny(session: Session, options: _Words) -> None:
    """Add a rule that denies USER an operation on a resource, whatever allows it.

    Connections that have used the operation end within a second.

    \b
    raftmq acl deny '*' write topic 'archive-*'
    """
    _put(session, options, DENY)


def _put(session: Session, words: _Words, verb: str) -> None:
    words.check()

    async def call(mq: "Client") -> tuple[bool, str]:
        unknown = await unknown_user(mq, words.user)
        put = mq.access.allow if verb == ALLOW else mq.access.deny
        return await put(words.user, words.operation, words.resource, words.name), unknown

    is_new, unknown = session.run(call)
    note(f"{'added' if is_new else 'there was already'}: {verb} {words}")
    if unknown:
        note(f"{unknown}: the rule is about certificates that name it")


@acl.command()
@click.argument("verb", type=click.Choice((ALLOW, DENY)))
@with_options(_Words)
@with_session
def drop(session: Session, options: _Words, verb: str) -> None:
    """Drop a rule: VERB and the words behind it, as in a row of `raftmq acl list`.

    \b
    raftmq acl drop deny '*' any topic orders-secret
    """
    options.check()

    async def call(mq: "Client") -> bool:
        from raftmq.wire.access import RuleView

        name, is_prefix = options.name.removesuffix("*"), options.name.endswith("*")
        rule = RuleView(
            user=options.user,
            is_allowed=verb == ALLOW,
            operation=options.operation,
            resource=options.resource,
            name=name,
            is_prefix=is_prefix,
            text="",
        )
        return await mq.access.drop_rule(rule)

    if not session.run(call):
        fix = "`raftmq acl list` shows those that there are"
        raise Failure(f"there is no such rule: {verb} {options}", fix=fix)
    note(f"dropped: {verb} {options}")


@acl.command("list")
@click.argument("user", type=USER, required=False)
@with_output
@with_session
def list_(session: Session, user: str | None) -> Result:
    """List all rules, or those about USER; rules about '*' hold for every user, too."""

    async def call(mq: "Client") -> "tuple[list[RuleView], int, str]":
        is_of_one = user not in (None, EVERYBODY)
        of_all = len(await mq.access.rules(EVERYBODY)) if is_of_one else 0
        rules = await mq.access.rules(user)
        none = f"no rules yet: `raftmq acl allow {user or 'USER'} read topic NAME` adds one"
        return rules, of_all, IS_OFF if not rules and await is_off(mq) else none

    rules, of_all, none = session.run(call)
    rows = [
        (
            ALLOW if rule.is_allowed else DENY,
            rule.user,
            rule.operation,
            rule.resource,
            f"{rule.name}*" if rule.is_prefix else rule.name,
        )
        for rule in rules
    ]
    columns = ["VERB", "USER", "OPERATION", "RESOURCE", "!NAME"]
    notes = [f"{counted(of_all, 'rule')} about every user besides: `raftmq acl list '*'`"]
    return Result(
        rules, [Table(columns, rows) if rows else Note(none)], notes=notes if of_all else []
    )


@acl.command()
@with_options(_Question)
@with_output
@with_session
def check(session: Session, options: _Question) -> Result:
    """Say whether USER may do something, and why.

    The exit code is 0 if it is allowed, and 1 if it is denied.
    """
    options.check_one()
    words = (options.user, options.operation, options.resource, options.name)

    async def call(mq: "Client") -> "tuple[Judged, str]":
        return await mq.access.judge(*words), await unknown_user(mq, options.user)

    judged, warning = session.run(call)
    if warning:
        note(warning)
    return Result(judged, [judged.why], code=ExitCode.OK if judged.is_allowed else ExitCode.FAILED)
