"""Logins: a client proves who it is, by a password or a token, and failures are slowed.

| | a node looks up | the client shows |
|---|---|---|
| password | salt and keys by the user's name | a proof (`raftmq.access.scram`) |
| token `raftmq_ID_SECRET` | the digest by ID | the token |

Invariants:
- An unknown user is answered like a known one with a wrong password: with a salt that is the same
  each time and on all nodes, and with the same refusal.
- After a failure, the next attempt for that name from that address waits: longer after each further
  failure, up to `DELAY_SECONDS_MAX`. An attempt is not checked before its turn.
- Nothing of a password, proof or token goes into a text.

Left out: hiding users whose password has another iteration count, or length of salt, than
`Access.put_user` gives: the challenge shows both.
"""

import hmac
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from raftmq.access.scram import ITERATIONS, BadLogin, NodeExchange, StoredKeys
from raftmq.access.tokens import digest_of, has_ended, parts_of
from raftmq.machine.catalog.access import KEY_BYTES, SALT_BYTES_MIN, AccessState, User
from raftmq.machine.names import NAME_CHARACTERS_MAX

DELAY_SECONDS = 0.2
"""The wait after the first failure; each further one doubles it, up to `DELAY_SECONDS_MAX`."""
DELAY_SECONDS_MAX = 5.0
"""The longest wait, below the time that a connection has for its login. Attempts that come at the
same time wait one after the other, and those that would wait longer are refused."""
FORGET_SECONDS = 600.0
"""Failures of a name and address are forgotten this long after the last turn ended."""
ADDRESS_NAMES_MAX = 100
"""Names with failures of one address; further names share a line."""
FAILURES_MAX = 10_000
"""Names with addresses whose failures are remembered; the one without a failure or turn for
longest goes first."""


class Identity(NamedTuple):
    """The user that a client has proved to be, and the means of the proof."""

    user: str
    """The user's name."""
    token: str = ""
    """The token's public part; empty: it was no token."""
    stored_key: bytes = b""
    """The key of the password; empty: it was no password."""

    def __repr__(self) -> str:
        return f"Identity(user={self.user!r}, token={self.token!r})"

    def until_ms(self, access: AccessState) -> int | None:
        """Until when it is valid, by the catalog as it is: milliseconds since 1970, 0 without an
        end; None: it is no longer valid."""
        if self.token:
            token = access.tokens.get(self.token)
            return None if token is None else token.until_ms
        if self.stored_key:
            user = access.users.get(self.user)
            for keys in user.keys if user is not None else ():
                if keys.stored_key == self.stored_key:
                    return keys.until_ms
            return None
        return 0  # A certificate: TLS sees to its end.


def is_valid(identity: Identity, access: AccessState, now_ms: int) -> bool:
    """Whether an identity is valid now."""
    until_ms = identity.until_ms(access)
    return until_ms is not None and not has_ended(until_ms, now_ms)


class Exchange:
    """A password's exchange that has begun.

    Raises:
        BadLogin: the first message makes no sense.
    """

    def __init__(self, first: str, access: AccessState, *, nonce: str, now_ms: int) -> None:
        self._exchange = NodeExchange(first)
        self.user = self._exchange.user
        """The name that the client gives: a claim."""
        user = access.users.get(self.user)
        keys = _valid_keys(user, now_ms) if user is not None else []
        salt, iterations = (
            (user.salt, user.iterations)
            if user is not None and keys
            else (_decoy_salt(access, self.user), ITERATIONS)
        )
        self._is_known = bool(keys)
        # Always two, or the time would tell who is known, or has just changed the password.
        nothing = StoredKeys(bytes(KEY_BYTES), bytes(KEY_BYTES))
        keys = [*keys, nothing, nothing][:2]
        self.challenge = self._exchange.challenge(salt, iterations, keys, nonce)
        """The answer to the first message."""

    def verify(self, final: str) -> tuple[Identity, str]:
        """The identity that the client has proved, and the node's own proof.

        Raises:
            BadLogin: the proof is wrong.
        """
        keys, last = self._exchange.verify(final)
        if not self._is_known or not any(keys.stored_key):
            raise BadLogin("no such user")
        return Identity(self.user, stored_key=keys.stored_key), last


def identity_by_token(text: str, access: AccessState, now_ms: int) -> Identity:
    """The identity that a token proves.

    Raises:
        BadLogin: there is no such token, or it is no longer valid.
    """
    id_, secret = parts_of(text)
    token = access.tokens.get(id_)
    known = bytes(KEY_BYTES) if token is None else token.digest
    is_right = hmac.compare_digest(digest_of(secret), known)
    if token is None or not is_right:
        raise BadLogin("no such token")
    identity = Identity(token.user, token=id_)
    if not is_valid(identity, access, now_ms):
        raise BadLogin("the token has expired")
    return identity


def _valid_keys(user: User, now_ms: int) -> list[StoredKeys]:
    return [
        StoredKeys(keys.stored_key, keys.server_key)
        for keys in user.keys
        if not has_ended(keys.until_ms, now_ms)
    ]


def _decoy_salt(access: AccessState, name: str) -> bytes:
    """A salt for an unknown user, by which a client cannot tell that the user is unknown."""
    digest = hmac.digest(access.seed, name.encode("utf-8", "surrogatepass"), "sha256")
    return digest[:SALT_BYTES_MIN]


class Failures:
    """How long the next attempt for a name from an address has to wait."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # (address, name) → failures, and the time before which no attempt is checked; in the order
        # of the last failure or turn.
        self._of: dict[tuple[str, str], tuple[int, float]] = {}
        # Address → entries of it above.
        self._names: Counter[str] = Counter()
        self.count = 0
        """Failures since the node started."""
        self.last = ""
        """The name and address of the last one, for people; empty: there was none."""

    def take_turn(self, address: str, name: str) -> float:
        """Seconds until the next attempt may be checked; it has its turn then, and others wait
        behind it. More than `DELAY_SECONDS_MAX`: it gets no turn, as many wait already."""
        now, key = self._now(), self._key(address, name)
        if key not in self._of:
            return 0.0
        failures, until = self._of[key]
        if until <= now - FORGET_SECONDS:
            self._drop(key)
            return 0.0
        due = max(now, until)
        if due - now > DELAY_SECONDS_MAX:
            return due - now
        self._put(key, failures, due + _delay(failures))
        return due - now

    def failed(self, address: str, name: str) -> None:
        """An attempt has failed."""
        self.count += 1
        self.last = f"{name[:NAME_CHARACTERS_MAX]!r} from {address or 'this machine'}"
        key = self._key(address, name)
        failures, until = self._of.get(key, (0, 0.0))
        # Attempts that have their turn already keep it.
        self._put(key, failures + 1, max(until, self._now() + _delay(failures + 1)))

    def succeeded(self, address: str, name: str) -> None:
        """An attempt has succeeded: the next one for this name does not wait."""
        self._drop((address, name))

    def _key(self, address: str, name: str) -> tuple[str, str]:
        """The line in which an attempt stands: that of the name, or for further names of an address
        one that they share, so that made-up names push no other one out."""
        own = (address, name)
        is_full = own not in self._of and self._names[address] >= ADDRESS_NAMES_MAX
        return (address, "") if is_full else own

    def _put(self, key: tuple[str, str], failures: int, until: float) -> None:
        self._drop(key)
        self._of[key] = (failures, until)
        self._names[key[0]] += 1
        if len(self._of) > FAILURES_MAX:
            self._drop(next(iter(self._of)))

    def _drop(self, key: tuple[str, str]) -> None:
        if self._of.pop(key, None) is not None:
            self._names[key[0]] -= 1
            if not self._names[key[0]]:
                del self._names[key[0]]


def _delay(failures: int) -> float:
    return float(min(DELAY_SECONDS * 2 ** min(failures - 1, 10), DELAY_SECONDS_MAX))
