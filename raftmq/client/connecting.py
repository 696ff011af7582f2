"""`connect`: opens the client, and closes it.

`connect` opens one task group in the application's task, for all background work of the client. The
block raises its body's exception unwrapped: the task group never sees that exception.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from os import PathLike
from types import TracebackType
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from raftmq.client.routing.first_contact import REFUSED_SECONDS, first_contact
from raftmq.client.routing.router import Router
from raftmq.errors import RaftmqError, Reason, Rejected
from raftmq.machine.names import why_no_name

from .address import parse_url
from .arguments import Unentered, require, require_seconds, require_text
from .client import Client
from .login import Login, source_of
from .supervisor import Supervisor
from .tls import tls_of
from .world import ClientWorld, RealWorld

C = TypeVar("C", bound=Client)


class Connecting(Unentered, AbstractAsyncContextManager[C]):
    """Context manager that `connect` returns; `make` makes the client once a node has answered."""

    def __init__(
        self,
        router: Router,
        world: ClientWorld,
        make: Callable[[Router, Supervisor, ClientWorld], C],
        *,
        wait_refused: float | None = None,
    ) -> None:
        self._wait_refused = wait_refused
        self._router = router
        self._world = world
        self._make = make
        self._tasks: TaskGroup | None = None
        self._supervisor: Supervisor | None = None
        self._client: C | None = None

    async def __aenter__(self) -> C:
        if self._tasks is not None:
            raise RaftmqError("a connection is used once: call connect() again")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            supervisor = self._supervisor = Supervisor(self._tasks)
            self._router.start(supervisor.task_scope(lambda _: self._router.close()))
            contact = first_contact(self._router, self._wait_refused)
            await self._router.within(None, contact, "a first contact with the cluster")
        except BaseException:
            await self._end(self._tasks)
            raise
        client = self._client = self._make(self._router, supervisor, self._world)
        return client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        await self._end(self._tasks)
        judge = None if self._client is None else self._client._judge
        if error is None and judge is not None:
            judge.raise_found()

    async def _end(self, tasks: TaskGroup) -> None:
        """End all background tasks. The task group would wrap the body's exception, so it never
        gets that exception."""
        if self._supervisor is not None:
            self._supervisor.close()
        self._router.close()
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)


def connect(
    url: str,
    *,
    timeout: float = 30.0,
    cluster: str = "",
    wait_refused: float | None = REFUSED_SECONDS,
    ca: str = "",
    cert: str = "",
    login: Login | str | PathLike[str] = "",
    zone: str = "",
    name: str = "",
    check: bool = False,
    world: ClientWorld | None = None,
) -> AbstractAsyncContextManager[Client]:
    """`async with connect(url) as mq:` opens a cluster, on trio or asyncio.

    Entering waits until one node has answered. Leaving closes every connection; leave producers and
    consumers before. The calls concerned raise the errors of background tasks; this block never
    does.

    Args:
        url: `raftmq://host:port[,host:port...]`, any nodes of the cluster; the port may be left
            out (7400). `raftmqs://...[?ca=FILE][&cert=FILE][&crl=FILE][&login=FILE]` for nodes that
            are reached under TLS; `crl` are lists of revoked certificates. Both take `?zone=NAME`.
        timeout: seconds; the default of every call.
        cluster: the cluster's id: nodes of another cluster, which may have got the address of a
            node that is gone, are passed over. Empty: the cluster of the first node that answers.
        wait_refused: seconds for which every address may refuse the connection, before `connect`
            fails because no process listens. 0: the first refusal fails. None: wait for a starting
            cluster for `timeout` seconds.
        ca: under TLS: path of the authorities that sign the nodes' certificates (PEM); empty: as
            the URL says, or those that the system trusts.
        cert: under TLS: path of this client's certificate and its private key (PEM); empty: as the
            URL says, or it shows none.
        login: under TLS, for clusters that know their users: a `Login`, or the path of a login
            file; empty: as the URL says, or the user is the one that the certificate names.
        zone: the client's zone, one of the nodes' `node.zone`: messages without a key go to queues
            whose leader is in the zone, apart from some per cent, as long as such a leader is
            well. Empty: as the URL says, or there is no preference.
        name: the program's name, by which operators push settings to it (`raftmq config set client
            NAME ...`); several clients may have one. Empty: those for every client and for its
            topics hold.
        check: judge this client's calls for `Client.check`; leaving the block raises `Inconsistent`
            if a breach was found by then. It takes up to 200 MB of memory.
        world: the network, clock and randomness to use; None: the real ones.

    Raises:
        Rejected: the URL or a file is wrong (`BAD_ARGUMENT`), or each address belongs to another
            cluster (`WRONG_CLUSTER`), or does not agree on TLS (`TLS`), or a node does not accept
            the login, or wants one (`UNAUTHENTICATED`).
        Unavailable: no node answered in time, or no process listens at any address.
    """
    _check({"cluster": cluster, "ca": ca, "cert": cert, "zone": zone, "name": name})
    require_seconds(timeout, "timeout")
    if wait_refused is not None:
        require_seconds(wait_refused, "wait_refused")
    parsed = parse_url(url)
    tls = tls_of(parsed, ca, cert)
    if world is not None and tls is not None:
        raise Rejected(Reason.BAD_ARGUMENT, "a `world` of one's own has no TLS: leave one out")
    source = source_of(login, parsed.login)
    if source is not None and tls is None:
        raise Rejected(Reason.BAD_ARGUMENT, "a login is for TLS: write raftmqs:// in the URL")
    world = world or RealWorld(tls)
    router = Router(world, parsed.addresses, cluster=cluster, seconds_max=timeout)
    router.login, router.weights.zone = source, zone or parsed.zone
    router.pushed.name = name
    make = _checked if check else Client
    return Connecting(router, world, make, wait_refused=wait_refused)


def _check(texts: Mapping[str, str]) -> None:
    for which, text in texts.items():
        require_text(text, which)
    problem = why_no_name(texts["name"], "client") if texts["name"] else ""
    require(not problem, problem)


def _checked(router: Router, supervisor: Supervisor, world: ClientWorld) -> Client:
    # The checkers load numpy, which a client that is not checked must not wait for.
    from .checked.checking import Checking

    client = Client(router, supervisor, world)
    client._observe(Checking(router, supervisor))
    return client
