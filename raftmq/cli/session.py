"""A command's way to a cluster: the options `--url` and `--timeout`, and one connection.

A command is a plain function that click calls; its requests to the cluster are an async function of
a `Client`, which `Session.run` runs to its end.

Invariants:
- An error of the client leaves `Session.run` as a `Failure`, with the URL it concerns.
- Ctrl-C leaves `Session.run` as `KeyboardInterrupt`; a second one ends the process at once, with
  130.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from raftmq.errors import RaftmqError, Reason, Rejected
from raftmq.words import did_you_mean

from .exits import explained, unwrapped
from .values import DURATION

if TYPE_CHECKING:
    from raftmq.client import Client

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_URL = "raftmq://127.0.0.1:7400,127.0.0.1:7401,127.0.0.1:7402"
"""The addresses of the nodes of `raftmq up`: any of them may be down."""

HINT_SECONDS_MAX = 2.0
HINT_NAMES_MAX = 2_000
"""Bounds of the search for a name that is like an unknown one."""


@dataclass(frozen=True, slots=True)
class Session:
    """A cluster's address and how long to wait for it."""

    url: str
    """`raftmq://host:port[,host:port...]`."""
    timeout: float
    """Seconds that one call may take."""

    def run(self, call: Callable[["Client"], Awaitable[T]], *, backend: str = "asyncio") -> T:
        """Connect, run `call`, disconnect.

        Args:
            call: the requests.
            backend: the event loop. trio takes half of a command's start to import; a `call` that
                waits for the terminal needs it, as there a waiting thread does not delay the end.

        Raises:
            Failure: instead of any `RaftmqError`.
        """
        import raftmq

        async def connected() -> T:
            async with raftmq.connect(self.url, timeout=self.timeout, wait_refused=0.0) as mq:
                try:
                    return await call(mq)
                except (Rejected, BaseExceptionGroup) as caught:
                    error = unwrapped(caught)
                    if not isinstance(error, Rejected) or error.reason is not Reason.UNKNOWN_TOPIC:
                        raise
                    raise Rejected(error.reason, f"{error}{await _meant(mq, error)}") from caught

        return self.run_alone(connected, backend=backend)

    def run_alone(self, call: Callable[[], Awaitable[T]], *, backend: str = "asyncio") -> T:
        """Run `call`, which makes its own connections.

        Raises:
            Failure: instead of any `RaftmqError`.
        """
        import anyio

        from .interrupts import second_ends

        async def interruptible() -> T:
            with second_ends():
                return await call()

        try:
            return anyio.run(interruptible, backend=backend)
        except (RaftmqError, BaseExceptionGroup) as caught:
            error = unwrapped(caught)
            if isinstance(error, RaftmqError):
                raise explained(error, url=self.url) from error
            raise error from None

    def none_yet(self, what: str) -> str:
        """The hint for an empty list: where users may have rights, it may be empty for this one
        alone."""
        return f"no {what}{' that you may see' if self.is_under_tls else ' yet'}"

    @property
    def is_under_tls(self) -> bool:
        """Whether the URL is that of nodes under TLS, where users may have rights."""
        from raftmq.client.address import parse_url

        return parse_url(self.url).is_under_tls


async def _meant(mq: "Client", error: Rejected) -> str:
    """The question for the topic whose name is like that in the error; empty: there is none."""
    wanted = re.search(r"there is no topic '(.+?)'", str(error))
    names: list[str] = []
    # The error is shown anyway, without the question if the cluster does not answer.
    with suppress(RaftmqError):
        names = [topic.name for topic in await mq.admin.list_topics(timeout=HINT_SECONDS_MAX)]
    return did_you_mean(wanted[1], names[:HINT_NAMES_MAX], count=2) if wanted else ""


def _check_url(ctx: click.Context, param: click.Parameter, url: str) -> str:
    from raftmq.client.address import parse_url

    try:
        parse_url(url)
    except RaftmqError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return url


def _check_timeout(ctx: click.Context, param: click.Parameter, seconds: float) -> float:
    if seconds <= 0:
        message = "a call needs some time: give more than 0, as 500ms or 10s"
        raise click.BadParameter(message, ctx, param)
    return seconds


url_option = click.option(
    "--url",
    envvar="RAFTMQ_URL",
    default=DEFAULT_URL,
    callback=_check_url,
    metavar="URL",
    help="Addresses of the cluster.  [RAFTMQ_URL; default: the nodes of `raftmq up`, "
    "127.0.0.1:7400 to 7402]",
)
"""The option `--url`, passed as `url`."""


def with_session(command: Callable[Concatenate[Session, P], T]) -> Callable[..., T]:
    """Give a command `--url` and `--timeout`, and the `Session` they make as its first argument."""

    @url_option
    @click.option(
        "--timeout",
        type=DURATION,
        default="10s",
        callback=_check_timeout,
        metavar="DURATION",
        help="The longest that one call may take.  [default: 10s]",
    )
    @wraps(command)
    def wrapper(url: str, timeout: float, *args: P.args, **kwargs: P.kwargs) -> T:
        return command(Session(url, timeout), *args, **kwargs)

    return wrapper
