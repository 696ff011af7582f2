"""A secure cluster on one machine, as `raftmq up --secure` and tests make it: its certificates, and
the settings of its nodes.
"""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from .names import USER, CertificateName, node_name

ADMIN = "admin"
"""The user that gets a certificate."""

DAYS = 365.0
"""Days for which the certificates are valid."""


def can_certify() -> bool:
    """Whether the library that makes certificates is installed (`raftmq[cert]`)."""
    return find_spec("cryptography") is not None


def certify(folder: Path, cluster: str, nodes: Iterable[int], *hosts: str) -> None:
    """Make certificates of nodes, by the authority in a folder. If there is none, it is made, and a
    certificate of the user `ADMIN`.

    Args:
        folder: the folder; see `authority`.
        cluster: the cluster's id.
        nodes: the numbers of the nodes.
        hosts: the names and addresses of the machine.

    Raises:
        FileExistsError: a node has a certificate in this folder.
        OSError, ValueError: as `Authority`.
    """
    # Imported here: a cluster without certificates needs no such library.
    from .authority import Authority

    authority = Authority(folder)
    for node in nodes:
        authority.issue(node_name(cluster, node), hosts, days=DAYS)
    if authority.is_new:
        authority.issue(CertificateName(cluster, USER, ADMIN), (), days=DAYS)


def tls_settings(folder: Path, node: int) -> dict[str, str]:
    """The table `tls` of a node's settings."""
    names = {
        "cert": f"node-{node}.pem",
        "key": f"node-{node}.key",
        "ca": "ca.pem",
        "crl": "crl.pem",
    }
    return {setting: str(folder / name) for setting, name in names.items()}


def secure_settings(folder: Path, node: int) -> Mapping[str, Mapping[str, Any]]:
    """The tables of a node's settings: TLS, and users, of whom `ADMIN` may do everything."""
    return {"tls": tls_settings(folder, node), "access": {"is_on": True, "admins": [ADMIN]}}


def cluster_url(addresses: Iterable[str], folder: str | Path | None) -> str:
    """The URL of the nodes at these addresses.

    Args:
        addresses: `host:port` of each node.
        folder: the folder of `certify`; the user of the URL is `ADMIN`. None: connections are
            plain.
    """
    if folder is None:
        return f"raftmq://{','.join(addresses)}"
    files = {"ca": "ca.pem", "cert": f"user-{ADMIN}.pem", "crl": "crl.pem"}
    query = urlencode({name: f"{folder}/{file}" for name, file in files.items()}, safe="/")
    return f"raftmqs://{','.join(addresses)}?{query}"
