"""Rules of access, and the verdict on one act of a user.

A rule allows or denies a user an operation on a resource: one with an exact name, or all whose
names begin with a prefix.

| rules about the user or `*` | verdict |
|---|---|
| one denies the operation or `any`; for `pop`, also `read` | denied, whatever allows it |
| else one allows it or `any`; for `pop`, also `read`; for `describe`, anything | allowed |
| else | the default |

>>> rules = Rules()
>>> _ = rules.put(Rule("alice", True, Operation.READ, Resource.TOPIC, "orders-", is_prefix=True))
>>> _ = rules.put(Rule("*", False, Operation.ANY, Resource.TOPIC, "orders-secret"))
>>> print(rules.judge("alice", Act(Operation.READ, Resource.TOPIC, "orders-2026")))
allowed by: allow alice read topic orders-*
>>> print(rules.judge("alice", Act(Operation.READ, Resource.TOPIC, "orders-secret")))
denied by: deny * any topic orders-secret
>>> print(rules.judge("bob", Act(Operation.READ, Resource.TOPIC, "orders-2026")))
denied: no rule allows it

Invariants:
- A verdict makes at most 129 look-ups for the user and 129 for `*`, however many rules there are:
  the exact name, and one beginning for each length of a prefix (0 to 127 characters).
- Whether an act is allowed does not depend on the order in which rules were put.

Sources: Kafka's ACLs (KIP-11; prefixes, KIP-290) for users, resources, and that a denial wins.
"""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

EVERYBODY = "*"
"""Stands for every user in a rule."""

RULES_MAX = 200_000
"""Rules of a cluster: each node keeps them all in memory."""


class Operation(StrEnum):
    """Something that a user does to a resource."""

    # An enum's own hash is a call of Python, and each request looks for acts in a set.
    __hash__ = str.__hash__

    READ = "read"
    """Of a topic: read any of its messages, by offset, key or trace. Of a consumer group: take part
    in it. Of the cluster: read the events of all logs."""
    POP = "pop"
    """Of a topic: get its messages from a consumer group that pops. A rule about `READ` is about
    this, too."""
    WRITE = "write"
    """Of a topic: send messages. Of a producer group: begin its transactions and decide them."""
    DESCRIBE = "describe"
    """See that a resource exists, its settings and its backlog. Of the cluster: the status of its
    nodes. A rule that allows any other operation on the resource allows this one, too; a rule that
    denies this one wins."""
    ADMIN = "admin"
    """Create, change and delete a resource; dead letters and resets of a consumer group. Of the
    cluster: nodes, partition groups, users, rules, quotas and the audit log."""
    ANY = "any"
    """In a rule: all of these."""


class Resource(StrEnum):
    """A kind of thing that rules are about."""

    __hash__ = str.__hash__

    TOPIC = "topic"
    GROUP = "group"
    """A group of consumers or producers."""
    CLUSTER = "cluster"
    """The cluster itself; it has no name."""


OPERATIONS = {
    Resource.TOPIC: frozenset(Operation),
    Resource.GROUP: frozenset(Operation) - {Operation.POP},
    Resource.CLUSTER: frozenset(
        (Operation.READ, Operation.DESCRIBE, Operation.ADMIN, Operation.ANY)
    ),
}
"""The operations that there are on each kind of resource."""


class Act(NamedTuple):
    """Something that a user wants to do."""

    operation: Operation
    """Not `ANY`."""
    resource: Resource
    name: str = ""
    """The resource's name; empty for the cluster."""

    def __str__(self) -> str:
        return f"{self.operation} {self.resource} {self.name}".rstrip()


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """One rule."""

    user: str
    """The user's name, or `EVERYBODY`."""
    is_allowed: bool
    """False: the rule denies."""
    operation: Operation
    resource: Resource
    name: str = ""
    """The resource's name, or the beginning of names; empty for the cluster."""
    is_prefix: bool = False
    """True: for all resources of this kind whose names begin with `name`."""

    def __str__(self) -> str:
        verb = "allow" if self.is_allowed else "deny"
        name = f"{self.name}*" if self.is_prefix else self.name
        return f"{verb} {self.user} {self.operation} {self.resource} {name}".rstrip()


class Verdict(NamedTuple):
    """The verdict on an act, with its reason."""

    is_allowed: bool
    rule: Rule | None
    """The rule that decides; None: the default counts, or the user is an administrator."""

    def __str__(self) -> str:
        word = "allowed" if self.is_allowed else "denied"
        if self.rule is not None:
            return f"{word} by: {self.rule}"
        return f"{word}: no rule {'denies' if self.is_allowed else 'allows'} it"


_Table = dict[tuple[Resource, str], tuple[Rule, ...]]


class _OfUser:
    """The rules of one user."""

    __slots__ = ("exact", "lengths", "prefixes")

    def __init__(self) -> None:
        self.exact: _Table = {}
        self.prefixes: _Table = {}
        # The number of rules with a prefix, by its length.
        self.lengths: Counter[int] = Counter()

    def table(self, rule: Rule) -> _Table:
        """The table in which a rule stands."""
        return self.prefixes if rule.is_prefix else self.exact

    def about(self, resource: Resource, name: str) -> Iterator[Rule]:
        """The rules about a resource."""
        yield from self.exact.get((resource, name), ())
        for length in self.lengths:
            if length <= len(name):
                yield from self.prefixes.get((resource, name[:length]), ())


class Rules:
    """All rules of a cluster."""

    def __init__(self) -> None:
        self._of: dict[str, _OfUser] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Rule]:
        """All rules, in an order that does not depend on the order in which they were put."""
        for user in self.users():
            yield from self.of_user(user)

    def __contains__(self, rule: Rule) -> bool:
        own = self._of.get(rule.user)
        return own is not None and rule in own.table(rule).get((rule.resource, rule.name), ())

    def users(self) -> list[str]:
        """The users that have rules, `EVERYBODY` among them, in order."""
        return sorted(self._of)

    def of_user(self, user: str) -> list[Rule]:
        """The rules of one user, or of `EVERYBODY`, in order."""
        own = self._of.get(user)
        tables = (own.exact, own.prefixes) if own is not None else ()
        return sorted((rule for each in tables for held in each.values() for rule in held), key=str)

    def put(self, rule: Rule) -> bool:
        """Add a rule; False: it is there already."""
        own = self._of.setdefault(rule.user, _OfUser())
        table, key = own.table(rule), (rule.resource, rule.name)
        held = table.get(key, ())
        if rule in held:
            return False
        table[key] = (*held, rule)
        if rule.is_prefix:
            own.lengths[len(rule.name)] += 1
        self._count += 1
        return True

    def drop(self, rule: Rule) -> bool:
        """Remove a rule; False: it is not there."""
        if rule not in self:
            return False
        own = self._of[rule.user]
        table, key = own.table(rule), (rule.resource, rule.name)
        table[key] = tuple(each for each in table[key] if each != rule)
        if not table[key]:
            del table[key]
        if rule.is_prefix:
            own.lengths[len(rule.name)] -= 1
            if not own.lengths[len(rule.name)]:
                del own.lengths[len(rule.name)]
        if not own.exact and not own.prefixes:
            del self._of[rule.user]
        self._count -= 1
        return True

    def drop_user(self, user: str) -> int:
        """Remove all rules of a user; their number."""
        rules = self.of_user(user)
        for rule in rules:
            self.drop(rule)
        return len(rules)

    def judge(self, user: str, act: Act, *, is_open: bool = False) -> Verdict:
        """The verdict on an act.

        Args:
            user: the user's name.
            act: what the user wants to do.
            is_open: the default: whether an act is allowed about which no rule says anything.
        """
        operation, resource, name = act
        allowing: Rule | None = None
        for who in (user, EVERYBODY):
            own = self._of.get(who)
            for rule in own.about(resource, name) if own is not None else ():
                if not rule.is_allowed:
                    if _covers(rule, operation):
                        return Verdict(False, rule)
                elif allowing is None and (
                    operation is Operation.DESCRIBE or _covers(rule, operation)
                ):
                    allowing = rule
        return Verdict(is_open if allowing is None else True, allowing)


def _covers(rule: Rule, operation: Operation) -> bool:
    # Who may pop a topic gets all its messages, so a rule about reading is about popping, too.
    return rule.operation in (operation, Operation.ANY) or (
        rule.operation is Operation.READ and operation is Operation.POP
    )
