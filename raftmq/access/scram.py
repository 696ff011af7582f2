"""Passwords by SCRAM-SHA-256: a client proves that it knows a password, and never sends it.

    ClientExchange           NodeExchange       RFC 5802
    first ─────────────────> first              client-first-message
          <───────────────── challenge          server-first-message: salt, iteration count
    final ─────────────────> verify             client-final-message: ClientProof
    check <───────────────── its own proof      server-final-message: ServerSignature

The node keeps `StoredKeys`, which do not contain the password. A holder of them can try passwords,
at `ITERATIONS` of PBKDF2 each; can pose as the node; and with an overheard exchange as the user.

Left out: binding the proof to the TLS connection (`tls-server-end-point`): a client that verifies
the node's certificate talks to that node alone.

Sources: RFC 5802, RFC 7677, by way of the library `scramp`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from scramp import ScramClient, ScramException, ScramMechanism
from scramp.core import ScramServer
from scramp.utils import saslprep

ITERATIONS = 100_000
"""Iteration count of PBKDF2 for new passwords: about 40 ms of a client's processor a login."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,127}")
_MECHANISM = ScramMechanism("SCRAM-SHA-256")
_UNFIT = (ScramException, ValueError)
"""What scramp raises for a message that makes no sense; the second for text that UTF-8 cannot
carry."""


class BadLogin(Exception):
    """The other end's message makes no sense, or its proof is wrong."""


class StoredKeys(NamedTuple):
    """The keys of one password."""

    stored_key: bytes
    """RFC 5802's StoredKey: checks a client's proof."""
    server_key: bytes
    """ServerKey: signs the node's own proof."""

    def __repr__(self) -> str:
        return "StoredKeys(...)"


def length_of(password: str) -> int:
    """The length of a password in characters after SASLprep, which drops some.

    Raises:
        ValueError: the password has characters that RFC 4013 (SASLprep) does not allow.
    """
    try:
        return len(saslprep(password))
    except _UNFIT as error:
        raise ValueError(f"no such password is allowed: {error}") from error


def make_keys(password: str, salt: bytes, iterations: int = ITERATIONS) -> StoredKeys:
    """The keys that a node keeps of a password. PBKDF2 takes about 40 ms for `ITERATIONS`, so the
    call belongs on a thread.

    Raises:
        ValueError: as `length_of`.
    """
    try:
        _, stored_key, server_key, _ = _MECHANISM.make_auth_info(password, iterations, salt)
    except _UNFIT as error:
        raise ValueError(f"no such password is allowed: {error}") from error
    return StoredKeys(stored_key, server_key)


class ClientExchange:
    """A client's end of one exchange.

    Raises:
        ValueError: as `make_keys`, also for the user's name.
    """

    def __init__(self, user: str, password: str) -> None:
        try:
            self._client = ScramClient(["SCRAM-SHA-256"], user, password)
        except _UNFIT as error:
            raise ValueError(f"no such login is allowed: {error}") from error
        self.first: str = self._client.get_client_first()
        """The first message."""

    def final(self, challenge: str) -> str:
        """The second message: the proof. As `make_keys` the call belongs on a thread.

        Raises:
            BadLogin: the challenge makes no sense.
        """
        try:
            self._client.set_server_first(challenge)
            return str(self._client.get_client_final())
        except _UNFIT as error:
            raise BadLogin(str(error)) from error

    def check(self, last: str) -> None:
        """Check the node's proof.

        Raises:
            BadLogin: the node does not know the password's keys.
        """
        try:
            self._client.set_server_final(last)
        except _UNFIT as error:
            raise BadLogin(str(error)) from error


class NodeExchange:
    """A node's end of one exchange.

    Args:
        first: the client's first message.

    Raises:
        BadLogin: the message makes no sense.
    """

    def __init__(self, first: str) -> None:
        self._first = first
        self.user = _user_in(first)
        """The name in the message: a claim so far."""
        self._servers: list[tuple[StoredKeys, ScramServer]] = []

    def challenge(
        self, salt: bytes, iterations: int, keys: Sequence[StoredKeys], nonce: str
    ) -> str:
        """The answer to the first message.

        Args:
            salt: the salt of all the user's passwords.
            iterations: their iteration count.
            keys: the keys of each password that is valid now.
            nonce: random, for this exchange alone.

        Raises:
            BadLogin: the first message makes no sense.
        """
        challenge = ""
        for each in keys:
            facts = (salt, each.stored_key, each.server_key, iterations)
            server = _MECHANISM.make_server(lambda _, facts=facts: facts, s_nonce=nonce)
            try:
                server.set_client_first(self._first)
                challenge = str(server.get_server_first())
            except _UNFIT as error:
                raise BadLogin(str(error)) from error
            self._servers.append((each, server))
        return challenge

    def verify(self, final: str) -> tuple[StoredKeys, str]:
        """The keys of the password that the client has proved to know, and the node's own proof.

        Raises:
            BadLogin: the proof is wrong.
        """
        for keys, server in self._servers:
            try:
                server.set_client_final(final)
                return keys, str(server.get_server_final())
            except _UNFIT:
                continue
        raise BadLogin("the proof is wrong")


def _user_in(first: str) -> str:
    """The user's name in a client's first message, `n,,n=NAME,r=NONCE`."""
    parts = first.split(",", 3)
    if len(parts) != 4 or parts[0] != "n" or parts[1] or not parts[2].startswith("n="):
        raise BadLogin("this is no first message of SCRAM-SHA-256 without channel binding")
    name = parts[2][2:]
    # Wider than the rule for names: the catalog decides which users exist. No character here needs
    # the escapes of SCRAM.
    if _NAME.fullmatch(name) is None:
        raise BadLogin("this is no name of a user")
    return name
