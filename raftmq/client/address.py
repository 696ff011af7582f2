"""The URL of a cluster: `raftmq://host:port[,host:port...]`, any of its nodes."""

from typing import NamedTuple

from raftmq.errors import Reason, Rejected
from raftmq.wire.address import why_no_address

PORT_DEFAULT = 7400
"""The native port where a URL names none."""
_SCHEME = "raftmq://"


class Address(NamedTuple):
    """The address of a node's native port."""

    host: str
    """A name or an IP address."""
    port: int
    """The native port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> list[Address]:
    """The addresses in a URL, in its order.

    >>> parse_url("raftmq://10.0.0.1:7400,[::1]:7401,db")
    [Address(host='10.0.0.1', port=7400), Address(host='::1', port=7401), Address(host='db', \
port=7400)]

    Raises:
        Rejected: `BAD_ARGUMENT`, the text is no such URL.
    """
    if not isinstance(url, str):
        raise _wrong(url, "it is no text (str)")
    if not url.startswith(_SCHEME):
        raise _wrong(url, "it does not begin with raftmq://")
    parts = url.removeprefix(_SCHEME).rstrip("/").split(",")
    return [_parse_one(part.strip(), url) for part in parts]


def _parse_one(text: str, url: str) -> Address:
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
    message = f"{url!r:.200} is no cluster URL: {why}; write raftmq://host:port[,host:port...]"
    return Rejected(Reason.BAD_ARGUMENT, message)
