"""Changes of the catalog that a node asks its leader for, whichever node that is."""

from typing import Any

import trio

from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.serve.answers import elsewhere, refusal
from raftmq.broker.tickets import Callback
from raftmq.errors import Unavailable
from raftmq.log.record import Kind
from raftmq.machine.catalog.catalog import SYSTEM_GROUP, Command
from raftmq.machine.commands import encode_commands
from raftmq.results import Changed, Refused, Result
from raftmq.wire.messages import Admin, AdminDone, ErrorReply, FrameKind

from .peers import Declined


async def change_catalog(node: Host, command: Command) -> Any:
    """Have the catalog's leader carry out a command; its result's value, or the refusal: an
    `ErrorReply`.

    Cancelling leaves open whether the command is carried out.
    """
    system = node.group(SYSTEM_GROUP)
    if system is None:
        return elsewhere(SYSTEM_GROUP)
    leader = node_of(system.leader)
    if leader == node.id:
        return await _propose(system, command)
    link = node.links.get(leader)
    try:
        if link is None:
            raise Unavailable("the system group has no leader")
        return (await link.ask(FrameKind.ADMIN, Admin.of(command), AdminDone)).result
    except Declined as declined:
        return declined.reply
    except Unavailable as error:
        return ErrorReply("unavailable", str(error), retry_ms=200)


async def _propose(group: Group, command: Command) -> Any:
    answers: list[Any] = []
    answered = trio.Event()

    def done(results: list[Result]) -> None:
        (result,) = results
        assert isinstance(result, Changed | Refused), "a command appends no batch"
        answers.append(refusal(result) if isinstance(result, Refused) else result.value)
        answered.set()

    def failed(error: ErrorReply) -> None:
        answers.append(error)
        answered.set()

    payload = encode_commands([command])
    group.propose(Kind.COMMANDS, payload, Callback(done, failed))
    await answered.wait()
    return answers[0]
