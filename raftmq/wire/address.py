"""The one rule for the host and port of a node, wherever they come in.

Settings, `raftmq cluster add`, a cluster's URL, `ChangeNode`, `PutNode` and the `Hello` of a node
are held to the rule before the address is used: a resolver raises for some texts (`a..b`, a label
of 64 letters, a port of 2^64), and an address in the catalog cannot be taken back from a log.

>>> why_no_address("10.0.0.4", 7400), why_no_address("fe80::1%eth0", 7400)
('', '')
>>> why_no_address("node..4", 7400)
"'node..4' is no host: write an IP address or a name, as db-4.example"

Left out: names beyond ASCII. They are written in their ASCII form (`xn--...`).

Sources: RFC 1123 §2.1 for names, with the underscore that container networks use in addition.
"""

import re
from typing import Final

PORT_MAX: Final = 65_535
HOST_CHARACTERS_MAX: Final = 253
"""The longest name that DNS carries."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


def why_no_address(host: str, port: int) -> str:
    """Why no node can be reached at this address, with the remedy; empty: one may be."""
    if not 1 <= port <= PORT_MAX:
        return f"{port} is no port: a port is from 1 to {PORT_MAX}"
    is_host = len(host) <= HOST_CHARACTERS_MAX and (
        _is_ipv6(host) if ":" in host else _NAME.fullmatch(host) is not None
    )
    if not is_host:
        return f"{host[:80]!r} is no host: write an IP address or a name, as db-4.example"
    return ""


def _is_ipv6(host: str) -> bool:
    # Imported here: most addresses are names or IPv4, and most commands start without it.
    from ipaddress import AddressValueError, IPv6Address

    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return host.isascii() and host.isprintable()
