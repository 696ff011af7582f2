"""`raftmq delay`: cancel delayed messages."""

from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.output import Lines, Result, with_output
from raftmq.cli.session import Session, with_session

if TYPE_CHECKING:
    from raftmq.client import Client


@click.group(cls=HintedGroup)
def delay() -> None:
    """Cancel delayed messages.

    \b
    raftmq produce orders "still there?" --delay 2h
    raftmq delay cancel 10000-19a1f0c2a10-30000
    """


@delay.command()
@click.argument("ids", nargs=-1, required=True)
@with_output
@with_session
def cancel(session: Session, ids: tuple[str, ...]) -> Result:
    """Cancel delayed messages by their IDS, as `produce --delay` printed them.

    A message whose time has come cannot be cancelled; a message that was cancelled before is not
    waiting. Of an id whose time is over that no message ever had, nothing else is known: "fell
    due". The exit code is 0 if none of the messages is delivered.
    """
    outcomes = session.run(lambda mq: _cancel(mq, ids))
    return Result(
        Lines({"id": each, "outcome": outcome} for each, outcome in outcomes.items()),
        [f"{each}  {outcome.replace('_', ' ')}" for each, outcome in outcomes.items()],
        code=ExitCode.FAILED if "fell_due" in outcomes.values() else ExitCode.OK,
    )


async def _cancel(mq: "Client", ids: tuple[str, ...]) -> dict[str, str]:
    from raftmq.errors import Reason, Rejected

    outcomes = {}
    for message_id in ids:
        try:
            is_cancelled = await mq.cancel(message_id)
        except Rejected as error:
            if error.reason is not Reason.FELL_DUE:
                raise
            outcomes[message_id] = error.reason.value
        else:
            outcomes[message_id] = "cancelled" if is_cancelled else "not_waiting"
    return outcomes
