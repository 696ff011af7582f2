"""raftmq: a clustered message broker whose every promise is checked.

The public names are loaded when first used (PEP 562), so that importing a core such as
`raftmq.consensus` never pulls in trio, sockets or the client.

>>> import raftmq
>>> raftmq.errors.Unavailable.__name__
'Unavailable'
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .version import VERSION as __version__

if TYPE_CHECKING:
    from . import blocking, errors
    from .client import (
        Admin,
        Client,
        Consumer,
        Login,
        Message,
        Messages,
        Outgoing,
        PopConsumer,
        PoppedMessage,
        PoppedMessages,
        Producer,
        Receipt,
        Resequencer,
        Sequencer,
        Settlement,
        connect,
        exponential,
    )
    from .embedded import Embedded
    from .embedded import open as open  # noqa: A004  # what users call it

__all__ = [
    "Admin",
    "Client",
    "Consumer",
    "Embedded",
    "Login",
    "Message",
    "Messages",
    "Outgoing",
    "PopConsumer",
    "PoppedMessage",
    "PoppedMessages",
    "Producer",
    "Receipt",
    "Resequencer",
    "Sequencer",
    "Settlement",
    "__version__",
    "blocking",
    "connect",
    "errors",
    "exponential",
]

_MODULES = {"blocking", "errors"}
_EMBEDDED = {"Embedded", "open"}


def __getattr__(name: str) -> object:
    # Not in __all__: `from raftmq import *` must not hide Python's own `open`.
    if name not in __all__ and name != "open":
        raise AttributeError(f"module 'raftmq' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"raftmq.{name}")
    home = "raftmq.embedded" if name in _EMBEDDED else "raftmq.client"
    value: object = getattr(import_module(home), name)
    # The next use finds it without this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
