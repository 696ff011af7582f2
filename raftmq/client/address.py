"""The URL of a cluster: any of its nodes, the client's zone, and under TLS the files to trust and
to show.

    raftmq://host:port[,host:port...][?zone=NAME]
    raftmqs://host:port[,host:port...][?ca=FILE][&cert=FILE][&crl=FILE][&login=FILE][&zone=NAME]

A URL is printed in logs and errors, so it holds no secret: `cert` and `login` name files.
"""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import parse_qsl

from raftmq.errors import Reason, Rejected
from raftmq.wire.address import why_no_address
from raftmq.words import did_you_mean

PORT_DEFAULT = 7400
"""The native port where a URL names none."""
_FILES = ("ca", "cert", "crl", "login")
_OPTIONS = (*_FILES, "zone")
_WORD_CHARACTERS_MAX = 20
"""Characters of a wrong name that an error repeats."""
_SCHEME, _TLS_SCHEME = "raftmq://", "raftmqs://"


class Address(NamedTuple):
    """The address of a node's native port."""

    host: str
    """A name or an IP address."""
    port: int
    """The native port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClusterUrl(NamedTuple):
    """The parts of a URL."""

    addresses: list[Address]
    """In the order of the URL."""
    is_under_tls: bool = False
    """True: the nodes are reached under TLS."""
    ca: str = ""
    """Path of the authorities that sign the nodes' certificates (PEM); empty: the system's."""
    cert: str = ""
    """Path of the client's certificate and its private key (PEM); empty: it shows none."""
    crl: str = ""
    """Path of the lists of revoked certificates (PEM), one of each authority; empty: none is
    revoked."""
    login: str = ""
    """Path of the client's login (`raftmq.client.login`); empty: it has none, or its certificate
    names the user."""
    zone: str = ""
    """The client's zone; empty: it has none."""


def parse_url(url: str) -> ClusterUrl:
    """The parts of a URL.

    >>> parse_url("raftmq://10.0.0.1:7400,[::1]:7401,db").addresses
    [Address(host='10.0.0.1', port=7400), Address(host='::1', port=7401), Address(host='db', \
port=7400)]
    >>> parse_url("raftmqs://db?ca=/etc/raftmq/ca.pem").ca
    '/etc/raftmq/ca.pem'

    Raises:
        Rejected: `BAD_ARGUMENT`, the text is no such URL.
    """
    if not isinstance(url, str):
        raise _wrong(url, "it is no text (str)")
    is_under_tls = url.startswith(_TLS_SCHEME)
    scheme = _TLS_SCHEME if is_under_tls else _SCHEME
    if not url.startswith(scheme):
        raise _wrong(url, "it does not begin with raftmq:// or raftmqs://")
    nodes, _, query = url.removeprefix(scheme).partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    options = dict(given)
    if query and not is_under_tls and (not given or options.keys() & set(_FILES)):
        raise _wrong(url, "only raftmqs:// takes files, as ?ca=FILE")
    if why := _why_no_options(given, _OPTIONS if is_under_tls else ("zone",)):
        once = "ca=FILE, cert=FILE, crl=FILE, login=FILE and zone=NAME"
        takes = f"each of {once}" if is_under_tls else "zone=NAME"
        raise _wrong(url, f"after `?` it takes {takes} once: {why}")
    addresses = [_parse_one(part.strip(), url) for part in nodes.rstrip("/").split(",")]
    return ClusterUrl(addresses, is_under_tls, **options)


def _why_no_options(given: list[tuple[str, str]], known: tuple[str, ...]) -> str:
    """The first fault of the names and values behind `?`; empty: there is none."""
    names = [name for name, _ in given]
    for name, value in given:
        if name not in known:
            # A word without a value may be a secret.
            return unknown_word(name, known) if value else "one part is not NAME=VALUE"
        if names.count(name) > 1:
            return f"{name} is given twice"
        if not value:
            return f"{name} names no {'file' if name in _FILES else name}"
    return ""


def unknown_word(word: str, known: Iterable[str]) -> str:
    """The words for a name that is none of the known ones. A long or odd one is not repeated: it
    may be a secret at the wrong place."""
    if not word.isidentifier() or len(word) > _WORD_CHARACTERS_MAX:
        return "one name is not among these"
    return f"there is no {word!r}{did_you_mean(word, known)}"


def tilde_hint(*paths: str) -> str:
    """The remedy for paths that a shell would have expanded; empty: there is none."""
    begun = any(path.startswith("~") for path in paths)
    return ": `~` is not expanded here, write the whole path" if begun else ""


def _parse_one(text: str, url: str) -> Address:
    if "@" in text:
        raise _wrong(url, "it holds no user or password: give `login`")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _wrong(url, f"{text!r} is no [address]:port")
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
    if not host:
        raise _wrong(url, f"{text!r} is no host:port")
    if colon and not port:
        raise _wrong(url, f"{text!r} ends where its port should be")
    if port and not (port.isascii() and port.isdigit()):
        raise _wrong(url, f"{port!r} is no port")
    address = Address(host, int(port) if port else PORT_DEFAULT)
    problem = why_no_address(*address)
    if problem:
        raise _wrong(url, problem)
    return address


def _wrong(url: object, why: str) -> Rejected:
    # What stands after `?` or before `@` may be a secret that does not belong there.
    shown = url.partition("?")[0].rpartition("@")[2] if isinstance(url, str) else url
    form = "raftmq://host:port[,host:port...]"
    if isinstance(url, str) and url.startswith(_TLS_SCHEME):
        form = "raftmqs://host:port[,host:port...]?ca=FILE&login=FILE"
    message = f"{shown!r:.200} is no cluster URL: {why}; write {form}"
    return Rejected(Reason.BAD_ARGUMENT, message)
