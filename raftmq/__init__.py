"""raftmq: a clustered message broker whose every promise is checked.

The public names are loaded when first used (PEP 562), so that importing a core such as
`raftmq.consensus` never pulls in trio, sockets or the client.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["__version__"]
