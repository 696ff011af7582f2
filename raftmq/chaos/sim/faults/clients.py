"""Faults of clients: they crash, stand still, come and go, and send again.

The network makes the repeats of a client: it plays a recorded connection again, on another
connection, so that the broker sees old requests with their old numbers.
"""

from collections.abc import Callable

from raftmq.chaos.faults.schedule import Event
from raftmq.chaos.sim.faults import replay
from raftmq.chaos.sim.stage import Stage

Undo = Callable[[], None]


def _some_client(stage: Stage, prefix: str = "") -> str:
    names = [name for name in stage.clients.names() if name.startswith(prefix)]
    return stage.random.choice(names) if names else ""


def crash(stage: Stage, event: Event) -> None:
    """A client ends in the middle of what it does."""
    name = _some_client(stage)
    if name:
        stage.clients.kill(name)


def churn(stage: Stage, event: Event) -> None:
    """A consumer ends, and another one takes over; twice."""
    for pause in (0.0, 0.7):
        stage.agenda.call_after(pause, lambda: _crash_consumer(stage))


def _crash_consumer(stage: Stage) -> None:
    name = _some_client(stage, "consumer")
    if name and not stage.is_healing:
        stage.clients.kill(name)


def hang(stage: Stage, event: Event) -> Undo | None:
    """A consumer stands still, and keeps its messages."""
    name = _some_client(stage, "consumer")
    if not name:
        return None
    process = stage.clients.process(name)
    process.freeze()
    return process.thaw


def slow(stage: Stage, event: Event) -> Undo:
    """Consumers need a second more for each batch."""
    stage.clients.slowness += 1.0

    def undo() -> None:
        stage.clients.slowness -= 1.0

    return undo


def resend(stage: Stage, event: Event) -> None:
    """A client's requests arrive again, at the node they were sent to and at another one."""
    clients = set(stage.clients.hosts())
    replay.play_again(stage, lambda source, _: source in clients, is_elsewhere=True)


def retry_storm(stage: Stage, event: Event) -> Undo:
    """All clients' connections break again and again: requests under way are sent again."""
    network, hosts = stage.cluster.network, set(stage.clients.hosts())
    is_over = False

    def strike() -> None:
        if is_over:
            return
        for connection in list(network.connections):
            if connection.ends[0] in hosts:
                connection.reset()
        stage.agenda.call_after(stage.random.uniform(0.2, 1.0), strike)

    def undo() -> None:
        nonlocal is_over
        is_over = True

    strike()
    return undo


def ack_twice(stage: Stage, event: Event) -> None:
    """A consumer commits its next position, or acks its next batch, twice."""
    stage.clients.repeats += 1


def ack_late(stage: Stage, event: Event) -> None:
    """A consumer commits an older position after a later one, or acks a forgotten batch late."""
    stage.clients.late_acks += 1
