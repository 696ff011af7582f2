"""Messages about access: a client's login; users, rules, quotas and the audit log for
administrators.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| LOG_IN | `LogIn`, `LoggedIn` | - | - |
| USERS | `FindUsers`, `FoundUsers` | - | - |
| RULES | `FindRules`, `FoundRules` | - | - |
| JUDGE | `JudgeAct`, `Judged` | - | - |
| AUDIT | `FindAudit`, `FoundAudit` | - | - |
| QUOTAS | `FindQuotas`, `FoundQuotas` | - | - |

Where a node requires a login, the first request on a connection is a `LogIn`, unless the
client's certificate names a user. Until then frames are short, and everything else is refused as
`unauthenticated`. Users, rules and quotas are changed with `messages.Admin`:
see `raftmq.machine.catalog.access` and `.quotas` for the commands.
"""

from .messages import _Wire

SCRAM = "SCRAM-SHA-256"
"""`LogIn.mechanism` of a password: two messages of RFC 5802."""
TOKEN = "token"  # a mechanism, no secret
"""`LogIn.mechanism` of a token: one message."""


class LogIn(_Wire, frozen=True):
    """Say who the client is; only under TLS."""

    mechanism: str
    """`SCRAM` or `TOKEN`."""
    data: str
    """The mechanism's next message; a token itself."""

    def __repr__(self) -> str:
        return f"LogIn({self.mechanism!r})"


class LoggedIn(_Wire, frozen=True):
    """The node's part of a login."""

    data: str
    """The mechanism's next message."""
    user: str = ""
    """The user that the client is from now on; empty: the mechanism wants another message."""


class FindUsers(_Wire, frozen=True):
    """Ask the leader of the system group for users, linearizably."""

    name: str | None = None
    """The user; None: all."""
    after: str = ""
    """For the next page: the name of the last entry of the one before."""


class TokenView(_Wire, frozen=True):
    """A token of a user."""

    id: str
    """The token's public part."""
    until_ms: int
    """Valid until then, milliseconds since 1970; 0: until it is revoked."""
    created_ms: int
    """When it was made, milliseconds since 1970."""
    note: str
    """The purpose, for people."""


class UserView(_Wire, frozen=True):
    """A user."""

    name: str
    """The user's name."""
    passwords: int
    """Number of passwords that are valid: after a change the one before may be for a while."""
    salt: bytes
    """The salt of the passwords; empty: the user has none."""
    iterations: int
    """Their iteration count of PBKDF2."""
    created_ms: int
    """When the user was created, milliseconds since 1970."""
    tokens: list[TokenView]
    """By public part."""
    old_until_ms: int = 0
    """When the previous password ends, milliseconds since 1970; 0: no previous one is valid."""


class FoundUsers(_Wire, frozen=True):
    """The answer to `FindUsers`."""

    users: list[UserView]
    """By name."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""


class FindRules(_Wire, frozen=True):
    """Ask the leader of the system group for rules, linearizably."""

    user: str | None = None
    """Only rules of this user, or of `*`; None: all."""
    after_user: str = ""
    """For the next page: the user of the last entry of the one before."""
    after_text: str = ""
    """For the next page: the text of that entry."""


class RuleView(_Wire, frozen=True):
    """A rule: see `raftmq.access.rules.Rule`."""

    user: str
    """The user's name, or `*`: every user."""
    is_allowed: bool
    """False: the rule denies."""
    operation: str
    """An `Operation`."""
    resource: str
    """A `Resource`."""
    name: str
    """The resource's name, or the beginning of names."""
    is_prefix: bool
    """True: for all names that begin so."""
    text: str
    """The rule in words."""


class FoundRules(_Wire, frozen=True):
    """The answer to `FindRules`."""

    rules: list[RuleView]
    """By user and text."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""


class JudgeAct(_Wire, frozen=True):
    """Ask the leader of the system group whether a user may do something, by the newest rules."""

    user: str
    """The user's name."""
    operation: str
    """An `Operation`."""
    resource: str
    """A `Resource`."""
    name: str = ""
    """The resource's name; empty for the cluster."""


class Judged(_Wire, frozen=True):
    """The verdict."""

    is_allowed: bool
    """True: the user may."""
    why: str
    """The verdict and its reason, in words."""
    rule: RuleView | None = None
    """The rule that decides; None: none does."""


class FindAudit(_Wire, frozen=True):
    """Ask the leader of the system group for entries of the audit log, linearizably."""

    after: int = 0
    """Only entries with a higher number."""
    user: str | None = None
    """Only acts of this user; None: of all."""
    limit: int = 0
    """The most entries of the answer; 0: as many as a page holds."""
    before: int = 0
    """For the next page: the number of the last entry of the one before. 0: from the newest on."""


class AuditView(_Wire, frozen=True):
    """An act of administration."""

    number: int
    """Its number in the audit log; never used again."""
    at_ms: int
    """When, milliseconds since 1970."""
    user: str
    """Who; empty: the cluster did not know its users."""
    address: str
    """Where the request came from; empty: the machine of the node that took it."""
    what: str
    """What was done, such as `create_topic`."""
    resource: str
    """What kind of thing it was done to, such as `topic`."""
    name: str
    """Which one."""
    detail: str
    """Further words."""
    result: str
    """`done`; `unchanged`; `begun`: the outcome is not known, or not yet; else the code of the
    refusal, such as `topic_exists`."""


class FoundAudit(_Wire, frozen=True):
    """The answer to `FindAudit`."""

    entries: list[AuditView]
    """The newest first."""
    dropped: int
    """Numbers below `before` whose entries are no longer kept: down to the last entry of a page
    that is cut, else down to `after`."""
    is_cut: bool = False
    """True: more follow; ask again, before the last one."""


class FindQuotas(_Wire, frozen=True):
    """Ask the leader of the system group for quotas, linearizably."""

    kind: str | None = None
    """`user` or `topic`; None: both."""
    name: str | None = None
    """Only the quota of this name, or of `*`; None: all."""
    after_kind: str = ""
    """For the next page: the kind of the last entry of the one before."""
    after_name: str = ""
    """For the next page: the name of that entry."""


class QuotaView(_Wire, frozen=True):
    """The quota of a user or topic; 0: no bound. Each node counts for itself, but for what a user
    owns."""

    kind: str
    """`user` or `topic`."""
    name: str
    """The name, or `*`: each one without a quota of its own."""
    write_bytes: int
    """Bytes of batches sent to a node in a second."""
    write_messages: int
    """Messages in them."""
    read_bytes: int
    """Bytes of batches that a node sends out in a second."""
    read_messages: int
    """Messages in them."""
    connections: int
    """Open connections of the user to a node."""
    requests: int
    """Requests of the user that wait for an answer of a node."""
    topics: int = 0
    """Topics that the user owns, in the whole cluster."""
    queues: int = 0
    """Queues of these topics."""
    groups: int = 0
    """Consumer groups that the user owns, in the whole cluster."""
    in_flight: int = 0
    """Messages that consumers which pop have in hand or have asked for."""


class FoundQuotas(_Wire, frozen=True):
    """The answer to `FindQuotas`."""

    quotas: list[QuotaView]
    """By kind and name."""
    is_cut: bool = False
    """True: more follow; ask again, after the last one."""
