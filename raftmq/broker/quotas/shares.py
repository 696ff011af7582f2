"""The connections of each user, and the open requests of users with a bound on them.

At the bound the node reads none of the user's connections: TCP stops the client. Each answer lets
one connection read on, in turn. If that one has nothing to read, or another reason not to, it
passes the turn on.

A share has its own list of connections that wait: the one of the node (`Load.waiting`) has those of
all users, and an answer would have to look through them for the next connection of this user.

Invariants:
- No connection waits for a share that is not full, but those that a connection about to run wakes.
- `Share.open` is the number of open requests on the connections of the share.
"""

from raftmq.broker.serve.connection import Connection


class Share:
    """The share of a user in the node's open requests."""

    __slots__ = ("_waiting", "open", "requests_max")

    def __init__(self, requests_max: int, open_: int) -> None:
        self.requests_max = requests_max
        self.open = open_
        self._waiting: dict[Connection, None] = {}

    @property
    def is_full(self) -> bool:
        """True: none of the user's connections is read."""
        return self.open >= self.requests_max

    def enlist(self, connection: Connection) -> None:
        """A connection does not read, as the share is full."""
        self._waiting[connection] = None

    def give_up(self, connection: Connection) -> None:
        """A connection waits no longer."""
        self._waiting.pop(connection, None)

    def note_closed(self) -> None:
        """A request was answered."""
        self.open -= 1
        self.pass_on()

    def pass_on(self) -> None:
        """A connection takes no place that is free: the next one may."""
        if not self._waiting or self.is_full:
            return
        connection = next(iter(self._waiting))
        # At the end: it is in the list until it runs.
        self._waiting[connection] = self._waiting.pop(connection)
        connection.wake()

    def wake_all(self) -> None:
        """Let all connections look whether they may read."""
        for connection in self._waiting:
            connection.wake()


class Shares:
    """The connections of all users on this node."""

    def __init__(self) -> None:
        self._of: dict[str, dict[Connection, None]] = {}
        self._shares: dict[str, Share] = {}

    def count(self, user: str) -> int:
        """Open connections of a user."""
        return len(self._of.get(user, ()))

    def connections(self, user: str) -> list[Connection]:
        """The open connections of a user."""
        return list(self._of.get(user, ()))

    def join(self, connection: Connection, user: str, requests_max: int) -> None:
        """A connection is a user's from now on. `requests_max`: see `bound`."""
        self.leave(connection)
        connection.user = user
        mine = self._of.setdefault(user, {})
        mine[connection] = None
        share = self._shares.get(user)
        if share is not None:
            connection.share = share
            share.open += connection.open_requests
        elif requests_max:
            self.bound(user, requests_max)

    def leave(self, connection: Connection) -> None:
        """A connection is gone, or is about to be another user's."""
        user = connection.user
        if not user:
            return
        share = self._shares.get(user)
        connection.user, connection.share = "", None
        mine = self._of[user]
        del mine[connection]
        if not mine:
            del self._of[user]
            self._shares.pop(user, None)
        if share is not None:
            share.give_up(connection)
            share.open -= connection.open_requests
            share.wake_all()

    def bound(self, user: str, requests_max: int) -> None:
        """The most open requests of a user; 0: without a bound."""
        mine = self._of[user]
        before = self._shares.pop(user, None)
        share: Share | None = None
        if requests_max:
            open_ = sum(connection.open_requests for connection in mine)
            share = self._shares[user] = Share(requests_max, open_)
        for connection in mine:
            connection.share = share
        if before is not None:
            before.wake_all()

    def users(self) -> list[str]:
        """The users with open connections."""
        return list(self._of)
