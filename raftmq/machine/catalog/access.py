"""Users, their tokens and the rules of access: a part of the catalog.

    PutUser("alice", salt, 100_000, keys)     -> alice has a password; the log holds keys of it
    PutToken("alice", "3f2a…", digest, …)     -> a program can act as alice
    PutRule(allow alice read topic orders)    -> what alice may do
    DropUser("alice")                         -> her tokens and rules are gone, too

A user that only certificates name need not be here: rules are about names.

Invariants:
- No password and no token stands here: only what SCRAM checks a proof with (`stored_key`,
  `server_key`), and the digest of a token, which is random and too long to guess.
- A token's user exists; the tokens of each user are counted as they come and go.
- `version` grows with every change; a node judges open connections again when it sees a higher one.

Sources: RFC 5802 §3 (stored keys of SCRAM), RFC 7677 (SHA-256).
"""

from collections import Counter
from typing import Any

import msgspec

from raftmq.access.rules import EVERYBODY, OPERATIONS, RULES_MAX, Resource, Rule, Rules
from raftmq.access.tokens import ID_CHARACTERS
from raftmq.errors import Reason
from raftmq.machine.names import why_no_name
from raftmq.results import Changed, Refused, Result

USERS_MAX = 100_000
"""Users of a cluster: each node keeps them all in memory."""
TOKENS_MAX = 100_000
"""Tokens of a cluster."""
USER_TOKENS_MAX = 1000
"""Tokens of one user: they are shown together."""
ITERATIONS_MIN = 4096
"""The lowest iteration count of PBKDF2 for a password (RFC 7677 §4)."""
ITERATIONS_MAX = 10_000_000
"""The highest, which takes a client some seconds."""
SALT_BYTES_MIN, SALT_BYTES_MAX = 16, 64
KEY_BYTES = 32
"""Bytes of a key of SCRAM-SHA-256, and of a token's digest."""
SEED_BYTES = 32
"""Bytes of the catalog's random key."""
NOTE_CHARACTERS_MAX = 200


class _Keyed(msgspec.Struct, frozen=True, array_like=True):
    """A value with keys, which `repr` leaves out: errors and logs show values."""

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={'...' if isinstance(v, bytes) else repr(v)}" for name, v in fields)
        return f"{type(self).__name__}({', '.join(shown)})"


class PutUser(_Keyed, frozen=True, array_like=True, tag="put_user"):
    """Create a user, or change the password of one."""

    name: str
    """The user's name."""
    salt: bytes = b""
    """The salt of the password; empty: the user has none, and acts by tokens or certificates."""
    iterations: int = 0
    """Iteration count of PBKDF2."""
    stored_key: bytes = b""
    """SCRAM's StoredKey."""
    server_key: bytes = b""
    """SCRAM's ServerKey."""
    old_until_ms: int = 0
    """The password before stays valid until this time, milliseconds since 1970; it must have the
    same salt and iterations. 0: it ends at once."""
    seed: bytes = b""
    """A random key, drawn by the node that proposes the command."""


class DropUser(msgspec.Struct, frozen=True, array_like=True, tag="drop_user"):
    """Delete a user with its tokens and rules."""

    name: str
    """The user's name."""


class PutToken(_Keyed, frozen=True, array_like=True, tag="put_token"):
    """Give a user a token."""

    user: str
    """The user's name."""
    id: str
    """The token's public part, `ID_CHARACTERS` long; drawn by the caller."""
    digest: bytes
    """SHA-256 of the token's secret part."""
    until_ms: int = 0
    """The token is valid until this time, milliseconds since 1970; 0: until it is dropped."""
    note: str = ""
    """The purpose, for people."""


class DropToken(msgspec.Struct, frozen=True, array_like=True, tag="drop_token"):
    """Revoke a token."""

    id: str
    """The token's public part."""


class PutRule(msgspec.Struct, frozen=True, array_like=True, tag="put_rule"):
    """Add a rule of access."""

    rule: Rule
    """The rule."""


class DropRule(msgspec.Struct, frozen=True, array_like=True, tag="drop_rule"):
    """Remove a rule of access."""

    rule: Rule
    """The rule."""


AccessCommand = PutUser | DropUser | PutToken | DropToken | PutRule | DropRule


class Keys(_Keyed, frozen=True, array_like=True):
    """What a node checks a password's proof with."""

    stored_key: bytes
    """SCRAM's StoredKey."""
    server_key: bytes
    """SCRAM's ServerKey."""
    until_ms: int = 0
    """Valid until then, milliseconds since 1970; 0: without an end."""


class User(_Keyed, frozen=True, array_like=True):
    """A user."""

    name: str
    """Unique."""
    salt: bytes
    """The salt of its passwords; empty: it has none."""
    iterations: int
    """Their iteration count of PBKDF2."""
    keys: tuple[Keys, ...]
    """Of the newest password, then of the one before if it was kept; its time may have passed."""
    created: int
    """When, by the leader's stamp in milliseconds."""


class Token(_Keyed, frozen=True, array_like=True):
    """A token."""

    id: str
    """Its public part; unique."""
    user: str
    """Its user's name."""
    digest: bytes
    """SHA-256 of its secret part."""
    until_ms: int
    """Valid until then, milliseconds since 1970; 0: until it is dropped."""
    created: int
    """When, by the leader's stamp in milliseconds."""
    note: str
    """The purpose, for people."""


class AccessState:
    """All users, tokens and rules of a cluster."""

    def __init__(self) -> None:
        self.version = 0
        """Index of the last record that changed anything here; 0: none did."""
        self.users: dict[str, User] = {}
        """Users by name."""
        self.tokens: dict[str, Token] = {}
        """Tokens by public part."""
        self.rules = Rules()
        """All rules."""
        self.seed = b""
        """A random key that never leaves the nodes; empty: there was no user yet."""
        # User → tokens: among 100,000 a count would take 5 ms.
        self._token_counts: Counter[str] = Counter()

    def apply(self, command: AccessCommand, *, index: int, now: int) -> Result:
        """Carry out a command of the record at `index`, stamped with `now`; the value says whether
        it changed anything."""
        match command:
            case PutUser():
                result = self._put_user(command, now)
            case DropUser(name=name):
                result = self._drop_user(name)
            case PutToken():
                result = self._put_token(command, now)
            case DropToken(id=id_):
                result = self._drop_token(id_)
            case PutRule(rule=rule):
                result = self._put_rule(rule)
            case DropRule(rule=rule):
                result = Changed(self.rules.drop(rule))
        if isinstance(result, Changed) and result.value:
            self.version = index
        return result

    def _put_user(self, command: PutUser, now: int) -> Result:
        known = self.users.get(command.name)
        problem = _why_no_user(command) or _why_no_overlap(command, known)
        if problem:
            return Refused(Reason.BAD_ARGUMENT, problem)
        if known is None and len(self.users) >= USERS_MAX:
            return Refused(Reason.BAD_ARGUMENT, f"the cluster has {USERS_MAX} users already")
        # With a time for the password before, there is one: see `_why_no_overlap`.
        before = known.keys[0] if known is not None and command.old_until_ms else None
        if before is not None and before.stored_key == command.stored_key:
            return Changed(False)  # A repeat must not end the password before.
        keys: tuple[Keys, ...] = ()
        if command.salt:
            keys = (Keys(command.stored_key, command.server_key),)
        if before is not None:
            keys += (Keys(before.stored_key, before.server_key, command.old_until_ms),)
        seed, self.seed = self.seed, self.seed or command.seed
        created = now if known is None else known.created
        user = User(command.name, command.salt, command.iterations, keys, created)
        self.users[command.name] = user
        return Changed((user, self.seed) != (known, seed))

    def _drop_user(self, name: str) -> Result:
        if problem := why_no_name(name, "user"):
            return Refused(Reason.BAD_ARGUMENT, problem)
        had_rules = self.rules.drop_user(name)
        if self._token_counts.pop(name, 0):
            for token in [token for token in self.tokens.values() if token.user == name]:
                del self.tokens[token.id]
        return Changed(self.users.pop(name, None) is not None or had_rules > 0)

    def _drop_token(self, id_: str) -> Result:
        token = self.tokens.pop(id_, None)
        if token is None:
            return Changed(False)
        self._token_counts[token.user] -= 1
        if not self._token_counts[token.user]:
            del self._token_counts[token.user]
        return Changed(True)

    def _put_token(self, command: PutToken, now: int) -> Result:
        problem = ""
        if len(command.id) != ID_CHARACTERS or not command.id.isalnum():
            problem = f"a token's public part has {ID_CHARACTERS} letters and digits"
        elif len(command.digest) != KEY_BYTES:
            problem = f"a token's digest has {KEY_BYTES} bytes, not {len(command.digest)}"
        elif len(command.note) > NOTE_CHARACTERS_MAX:
            problem = f"a token's note has {NOTE_CHARACTERS_MAX} characters at the most"
        if problem:
            return Refused(Reason.BAD_ARGUMENT, problem)
        if command.user not in self.users:
            message = f"there is no user {command.user!r}: create it first"
            return Refused(Reason.UNKNOWN_USER, message)
        if command.id in self.tokens:
            return Refused(Reason.BAD_ARGUMENT, f"there is a token {command.id} already")
        if self._token_counts[command.user] >= USER_TOKENS_MAX:
            message = f"user {command.user!r} has {USER_TOKENS_MAX} tokens already: drop some"
            return Refused(Reason.BAD_ARGUMENT, message)
        if len(self.tokens) >= TOKENS_MAX:
            return Refused(Reason.BAD_ARGUMENT, f"the cluster has {TOKENS_MAX} tokens already")
        self.tokens[command.id] = Token(
            command.id, command.user, command.digest, command.until_ms, now, command.note
        )
        self._token_counts[command.user] += 1
        return Changed(True)

    def _put_rule(self, rule: Rule) -> Result:
        if problem := why_no_rule(rule):
            return Refused(Reason.BAD_ARGUMENT, problem)
        if rule in self.rules:
            return Changed(False)
        if len(self.rules) >= RULES_MAX:
            return Refused(Reason.BAD_ARGUMENT, f"the cluster has {RULES_MAX} rules already")
        return Changed(self.rules.put(rule))

    def dump(self) -> list[Any]:
        """All of it as plain values."""
        return [
            self.version,
            self.seed,
            sorted(self.users.values(), key=lambda user: user.name),
            sorted(self.tokens.values(), key=lambda token: token.id),
            list(self.rules),
        ]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.version, self.seed, users, tokens, rules = state
        self.users = {user.name: user for user in msgspec.convert(users, list[User])}
        self.tokens = {token.id: token for token in msgspec.convert(tokens, list[Token])}
        self._token_counts = Counter(token.user for token in self.tokens.values())
        for rule in msgspec.convert(rules, list[Rule]):
            self.rules.put(rule)


def why_no_rule(rule: Rule) -> str:
    """Why a rule is refused; empty: it is not."""
    if rule.user != EVERYBODY and (problem := why_no_name(rule.user, "user")):
        return problem
    if rule.operation not in OPERATIONS[rule.resource]:
        known = ", ".join(sorted(OPERATIONS[rule.resource]))
        what = f"{rule.operation.value!r} of a {rule.resource.value}"
        return f"there is no {what}, only {known}"
    if rule.resource is Resource.CLUSTER:
        return "a rule about the cluster names no resource" if rule.name or rule.is_prefix else ""
    if rule.is_prefix and not rule.name:
        return ""
    # The beginning of a name follows the rule for names.
    return why_no_name(rule.name, rule.resource)


def _why_no_user(command: PutUser) -> str:
    if problem := why_no_name(command.name, "user"):
        return problem
    if not command.salt:
        is_empty = not (command.iterations or command.stored_key or command.server_key)
        return "" if is_empty else "a password needs a salt"
    if not SALT_BYTES_MIN <= len(command.salt) <= SALT_BYTES_MAX:
        return f"a salt has {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes"
    if not ITERATIONS_MIN <= command.iterations <= ITERATIONS_MAX:
        return f"a password has {ITERATIONS_MIN} to {ITERATIONS_MAX} rounds"
    if {len(command.stored_key), len(command.server_key)} != {KEY_BYTES}:
        return f"the keys of a password have {KEY_BYTES} bytes"
    return ""


def _why_no_overlap(command: PutUser, known: User | None) -> str:
    if not command.old_until_ms:
        return ""
    if known is None or not known.keys:
        return f"user {command.name!r} has no password that could stay valid"
    # A node tells one salt before it sees the proof.
    if (known.salt, known.iterations) != (command.salt, command.iterations):
        return "two passwords of a user must have one salt and number of rounds"
    return ""
