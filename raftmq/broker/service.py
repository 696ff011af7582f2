"""The face of a node's services: what a service answers, and what it hears of.

A *service* is a part of the node with its own job: fetches, consumers that pop, delayed messages,
snapshots. The node keeps its services in a list and calls them in that order.
"""

from types import MappingProxyType

from raftmq.broker.replica.group import Group
from raftmq.broker.serve.connection import Connection
from raftmq.broker.serve.dispatcher import Routes
from raftmq.log.record import Record
from raftmq.results import Result


class Service:
    """A service that does nothing; each service overrides what concerns it."""

    routes: Routes = MappingProxyType({})
    """The requests that the service answers."""

    def applied(self, group: Group, records: list[Record], results: list[list[Result]]) -> None:
        """A group's machine has applied records, with these results."""

    def led(self, group: Group, is_leader: bool) -> None:
        """This node won or lost the leadership of a group."""

    def closed(self, connection: Connection) -> None:
        """A connection is gone: nothing can be answered on it."""

    def forget(self, group: Group) -> None:
        """This node no longer carries a group."""

    def flush(self) -> None:
        """The step that brought requests is over: propose what waits for its end."""
