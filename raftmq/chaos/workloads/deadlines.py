"""Was each call of a client answered by its timeout? Guarantee 7, judged in all workloads.

    deadlines = Deadlines(now=trio.current_time, seconds=8.0)
    with deadlines.watched():
        ...                                    # any client, any call of `CALLS`
    print(deadlines.compared, deadlines.late)

Each public call of producers, consumers, `Admin` and `Client` that takes a `timeout` is measured
from outside, so that workloads need not do it themselves; so is the first contact of a client. A
message of `send_nowait` is measured from there to the end of its `wait`.

Invariants:
- A call that is cancelled before its deadline is not judged. One that is cancelled after its
  deadline is late: there was no answer. A `wait` that was cancelled is not judged when it is called
  again.
- A call whose process stood still meanwhile is not judged: the promise is made by a loop that runs.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from raftmq.client.admin.admin import Admin
from raftmq.client.client import Client
from raftmq.client.connecting import Connecting
from raftmq.client.consume.consumer import Consumer
from raftmq.client.pop.claims import HeldClaim
from raftmq.client.pop.consumer import PopConsumer
from raftmq.client.pop.popped import PoppedMessage, PoppedMessages
from raftmq.client.produce.producer import Producer
from raftmq.client.produce.producer_batch import PendingMany, PendingSend
from raftmq.errors import RaftmqError

_SETTLING = ("ack", "nack", "reject", "give_back", "extend")


def _timed(owner: type) -> tuple[str, ...]:
    """The public calls of a class that take a `timeout` and are awaited."""
    return tuple(
        name
        for name, call in vars(owner).items()
        if not name.startswith("_")
        and inspect.iscoroutinefunction(call)
        and "timeout" in inspect.signature(call).parameters
    )


CALLS: dict[type, tuple[str, ...]] = {
    Admin: _timed(Admin),
    Client: _timed(Client),
    Connecting: ("__aenter__",),
    Producer: ("send", "send_many", "flush", "cancel"),
    Consumer: ("commit", "committed", "seek"),
    PopConsumer: ("ack", "nack", "claim", "flush"),
    PoppedMessage: _SETTLING,
    PoppedMessages: _SETTLING,
    HeldClaim: ("release",),
}
"""The measured calls: their `timeout` is for the whole call."""

LATER: dict[str, type[PendingSend] | type[PendingMany]] = {
    "send_nowait": PendingSend,
    "send_many_nowait": PendingMany,
}
"""Calls of a producer whose answer is heard by `wait` of what they return."""

SLACK_SECONDS = 0.05
"""How long the last steps to an answer may take in simulated time."""

LATE_MAX = 20
"""Late calls that are kept; all are counted."""

Asynchronous = Callable[..., Awaitable[Any]]


class Deadlines:
    """Measures calls while `watched` lasts."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        seconds: float | None,
        slack_seconds: float = SLACK_SECONDS,
        stops: Callable[[], int] = lambda: 0,
    ) -> None:
        """Args:
        now: time in seconds.
        seconds: the clients' default timeout; None: calls without a timeout are not judged.
        slack_seconds: how late an answer may be.
        stops: how often the calling process has stood still so far.
        """
        self._now = now
        self._seconds = seconds
        self._slack_seconds = slack_seconds
        self._stops = stops
        self.compared: Counter[str] = Counter()
        """Calls that were judged, by name."""
        self.late: list[str] = []
        """Calls that were answered too late, the first few."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure the calls of all clients in this process while the context lasts."""
        with ExitStack() as stack:

            def replace(owner: type, name: str, measured: object) -> None:
                stack.enter_context(mock.patch.object(owner, name, measured))

            for owner, names in CALLS.items():
                for name in names:
                    call = getattr(owner, name)
                    replace(owner, name, self._measured(f"{owner.__name__}.{name}", call))
            for name, pending in LATER.items():
                begun: dict[int, _Begun] = {}
                replace(Producer, name, self._begins(getattr(Producer, name), begun))
                replace(pending, "wait", self._ends(f"Producer.{name}", pending.wait, begun))
            yield

    def _measured(self, name: str, call: Asynchronous) -> Asynchronous:
        @functools.wraps(call)
        async def measured(one: Any, *args: Any, **named: Any) -> Any:
            begun = self._begin(one, named.get("timeout"))
            try:
                result = await call(one, *args, **named)
            except RaftmqError:
                self._answered(name, begun)
                raise
            except BaseException:
                self._given_up(name, begun)
                raise
            self._answered(name, begun)
            return result

        return measured

    def _begins(self, send: Callable[..., Any], begun: "dict[int, _Begun]") -> Callable[..., Any]:
        @functools.wraps(send)
        def begins(one: Any, *args: Any, timeout: float | None = None, **named: Any) -> Any:
            pending = send(one, *args, timeout=timeout, **named)
            # The object is kept with its deadline, so that no other object gets its id.
            begun[id(pending)] = self._begin(pending, timeout)
            return pending

        return begins

    def _ends(self, name: str, wait: Asynchronous, begun: "dict[int, _Begun]") -> Asynchronous:
        @functools.wraps(wait)
        async def ends(one: Any, *args: Any, **named: Any) -> Any:
            known = begun.pop(id(one), None)
            try:
                result = await wait(one, *args, **named)
            except RaftmqError:
                self._answered(name, known)
                raise
            except BaseException:
                self._given_up(name, known)
                raise
            self._answered(name, known)
            return result

        return ends

    def _begin(self, what: object, timeout: float | None) -> "_Begun":
        seconds = self._seconds if timeout is None else timeout
        if timeout is None and isinstance(what, Admin | Client | Connecting):
            seconds = what._router.seconds_max
        return _Begun(what, seconds, self._now(), self._stops())

    def _answered(self, name: str, begun: "_Begun | None") -> None:
        late = self._late_seconds(begun)
        if begun is None or late is None:
            return
        self.compared[name] += 1
        if late > 0:
            self._note(f"{name} with timeout {begun.seconds:g} s was answered {late:.3f} s late")

    def _given_up(self, name: str, begun: "_Begun | None") -> None:
        late = self._late_seconds(begun)
        if begun is not None and late is not None and late > 0:
            self.compared[name] += 1
            what = f"{name} with timeout {begun.seconds:g} s"
            self._note(f"{what} had no answer when it was cancelled, {late:.3f} s late")

    def _late_seconds(self, begun: "_Begun | None") -> float | None:
        """How late it is for an answer to a call; None: that is not judged."""
        if begun is None or begun.seconds is None or self._stops() != begun.stops:
            return None
        return self._now() - begun.at - begun.seconds - self._slack_seconds

    def _note(self, text: str) -> None:
        if len(self.late) < LATE_MAX:
            self.late.append(text)


class _Begun(NamedTuple):
    """A call that was begun."""

    what: object
    seconds: float | None
    at: float
    stops: int
