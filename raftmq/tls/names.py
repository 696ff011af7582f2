"""The names that a certificate gives its holder: a node of a cluster, or a user.

A name is a URI among the certificate's alternative names, so that one certificate can hold it
beside the host names by which clients reach a node:

    urn:raftmq:production:node:3        node 3 of the cluster `production`
    urn:raftmq:production:user:alice    the user `alice`

>>> text = CertificateName("my cluster", NODE, "3").urn
>>> text, parse_urn(text)
('urn:raftmq:my%20cluster:node:3', CertificateName(cluster='my cluster', kind='node', name='3'))

Sources: RFC 5280 §4.2.1.6 (alternative names), RFC 8141 (URN). SPIFFE identities have the same
purpose; the name of a cluster is no trust domain there, as it may hold any characters.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

NODE = "node"
USER = "user"
_PREFIX = "urn:raftmq:"


class CertificateName(NamedTuple):
    """The name of a node or a user in one cluster."""

    cluster: str
    """The cluster's id."""
    kind: str
    """`NODE` or `USER`."""
    name: str
    """The node's number, or the user's name."""

    @property
    def urn(self) -> str:
        """The name as a URI for a certificate."""
        return f"{_PREFIX}{quote(self.cluster, safe='')}:{self.kind}:{quote(self.name, safe='')}"


def node_name(cluster: str, node: int) -> CertificateName:
    """The name of a node."""
    return CertificateName(cluster, NODE, str(node))


def parse_urn(text: str) -> CertificateName | None:
    """The name in a URI; None: the URI is none of raftmq's, or spells one in another way."""
    parts = text.removeprefix(_PREFIX).split(":")
    if len(parts) != 3 or parts[1] not in (NODE, USER):
        return None
    found = CertificateName(unquote(parts[0]), parts[1], unquote(parts[2]))
    # One spelling a name, so that an authority can refuse names by their text.
    return found if found.urn == text else None


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[CertificateName]:
    """The names in a verified certificate, as `ssl.SSLSocket.getpeercert` gives it; None or an
    empty certificate: the other end showed none."""
    alternatives = (certificate or {}).get("subjectAltName", ())
    found = (parse_urn(text) for kind, text in alternatives if kind == "URI")
    return frozenset(name for name in found if name is not None)
