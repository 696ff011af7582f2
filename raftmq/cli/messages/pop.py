"""`raftmq pop`: take messages of a consumer group; `ack`, `nack`, `extend`, `reject`: settle them.

`pop` prints a *handle* with each message. The lease runs on when the process has ended, and any
other process settles the message by its handle:

    raftmq pop orders -g billing -n 10 -o json > taken
    raftmq ack - < taken
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from raftmq.cli.exits import Failure
from raftmq.cli.names import GROUP, TOPIC
from raftmq.cli.options import argument, option, with_options
from raftmq.cli.output import (
    Note,
    Result,
    Table,
    duration_text,
    note,
    output_option,
    print_table,
    time_text,
    with_output,
)
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import DURATION
from raftmq.words import counted

from .formats import as_json, body_text, compiled

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.client.pop.consumer import PopConsumer
    from raftmq.client.pop.popped import PoppedMessage

ACKED_BEFORE_MAX = 100
"""Most messages that a late `ack` looks for in the log."""
COUNT_MAX = 100_000
"""Most messages that one command pops."""
MORE_SECONDS = 0.2
"""The wait for more messages once some have come, as each leader has a part of them."""

Start = Literal["earliest", "latest"]
Taken = tuple["PoppedMessage", str]
"""A message and its handle."""


@dataclass(frozen=True, slots=True)
class _Options:
    topic: str = argument(type=TOPIC)
    group: str = option(
        "-g",
        "--group",
        type=GROUP,
        required=True,
        help="The consumer group; a new one is created.",
    )
    count: int = option(
        "-n",
        "--count",
        type=click.IntRange(1, COUNT_MAX),
        default=1,
        help="At most this many.  [default: 1]",
    )
    wait: float = option(
        "--wait",
        type=DURATION,
        default="1s",
        metavar="DURATION",
        help="The longest wait for the first message.  [default: 1s]",
    )
    invisible: float | None = option(
        "--invisible",
        type=DURATION,
        metavar="DURATION",
        help="How long no other consumer gets them.  [default: the setting of the group]",
    )
    ack: bool = option("--ack", is_flag=True, help="Acknowledge the messages after printing them.")
    start: Start = option(
        "--from",
        type=click.Choice(["earliest", "latest"]),
        default="earliest",
        help="Where a group without a position begins.  [default: earliest]",
    )
    template: str | None = option(
        "-f",
        "--format",
        help=r"Print each message in this format: as in `consume`, and %H handle, %a attempt.",
    )


@click.command()
@with_options(_Options)
@output_option("table", "json", "raw")
@with_session
def pop(session: Session, options: _Options, output: str) -> None:
    """Pop messages for a consumer group: those that are there, or the first ones to come.

    No other consumer gets these messages until their leases expire. Settle each message by its
    handle before that: `raftmq ack`, `nack`, `reject`; `extend` gives it more time.

    \b
    raftmq pop orders -g billing
    raftmq pop orders -g billing -n 100 -o json > taken; raftmq ack - < taken
    raftmq pop orders -g billing -n 100 --ack -o raw
    """
    show = _printer(output, options.template)
    taken: list[Taken] = []
    session.run(lambda mq: _pop(mq, options, taken, show))
    if not options.ack:
        # Printed only after the last pop, so that the output shows all messages that were taken.
        show(taken)
    if not taken:
        within = duration_text(options.wait)
        note(f"nothing of {options.topic} was there for {options.group} within {within}")


async def _pop(
    mq: "Client", options: _Options, taken: list[Taken], show: Callable[[list[Taken]], None]
) -> None:
    """Pop up to the count, and add the messages to `taken`."""
    from raftmq.client.pop.handles import handle_of

    mode = await mode_to_pop(mq, options.group)
    consumer: PopConsumer
    async with mq.consumer(
        options.topic,
        group=options.group,
        mode=mode,
        start=options.start,
        prefetch=0,
        invisible=options.invisible,
    ) as consumer:
        wait = options.wait
        while len(taken) < options.count:
            messages = await consumer.pop(options.count - len(taken), wait=wait)
            if not messages:
                break
            new = [(message, handle_of(message)) for message in messages]
            taken += new
            if options.ack:
                show(new)
                settlement = await consumer.ack(messages)
                for message in settlement.fenced:
                    note(f"too late: {message.id} is no longer ours, and comes again")
            wait = min(wait, MORE_SECONDS)


async def mode_to_pop(mq: "Client", group: str) -> Any:
    """The group's mode, `pop` or `ordered`; `pop` for a new group.

    Raises:
        Failure: the group has another mode.
    """
    found = await mq.admin.consumer_groups(name=group)
    mode = found[0].mode if found else "pop"
    if mode not in ("pop", "ordered"):
        raise Failure(
            f"consumer group {group!r} has mode {mode}: no consumer pops for it",
            fix=f"`raftmq consume TOPIC -g {group}` reads for it, or take another group",
        )
    return mode


def _printer(output: str, template: str | None) -> Callable[[list[Taken]], None]:
    # Not a `Result`: with --ack each pop is printed before it is acknowledged.
    if template is not None:
        return _lines(template)
    if output == "table":
        return _table
    return _json_lines if output == "json" else _raw


def _lines(template: str) -> Callable[[list[Taken]], None]:
    handles: dict[int, str] = {}
    render = compiled(
        template,
        {
            "H": lambda message: handles[id(message)].encode(),
            "a": lambda message: b"%d" % message.attempt,  # type: ignore[attr-defined]
        },
    )

    def show(taken: list[Taken]) -> None:
        handles.update((id(message), handle) for message, handle in taken)
        _write(b"".join(render(message) for message, _ in taken))

    return show


def _table(taken: list[Taken]) -> None:
    rows = [
        (
            handle,
            message.attempt,
            time_text(message.deadline)[11:19],
            message.id,
            message.key or "",
            message.tag or "",
            body_text(message),
        )
        for message, handle in taken
    ]
    if rows:
        columns = ["!HANDLE", ">TRY", "!UNTIL", "!ID", "KEY", "TAG", "~BODY"]
        print_table(Table(columns, rows))


def _json_lines(taken: list[Taken]) -> None:
    for message, handle in taken:
        leased = {
            "handle": handle,
            "attempt": message.attempt,
            "token": message.token,
            "deadline": message.deadline,
        }
        _write(as_json(message, leased))


def _raw(taken: list[Taken]) -> None:
    _write(b"".join(message.body + b"\n" for message, _ in taken))


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# Settling


_handles_argument = click.argument("handles", nargs=-1, required=True, metavar="HANDLE...")


@click.command()
@_handles_argument
@with_output
@with_session
def ack(session: Session, handles: tuple[str, ...]) -> Result:
    """Acknowledge messages: the group has processed them, and never gets them again.

    `raftmq pop` prints the HANDLE; `-` reads handles, or lines of JSON of `pop`, from stdin. The
    exit code is 1 if some messages are not settled: their leases have expired, or they were settled
    in another way. Messages that were acknowledged before count as settled: the command looks up to
    100 of them up in the log.
    """
    return _settle(session, "ack", "acknowledged", handles)


@click.command()
@click.option(
    "--delay",
    type=DURATION,
    metavar="DURATION",
    help="The wait before they are handed out again.  [default: the group's schedule]",
)
@_handles_argument
@with_output
@with_session
def nack(session: Session, handles: tuple[str, ...], delay: float | None) -> Result:
    """Report that messages failed: they are handed out again, or become dead letters after the last
    attempt.

    `raftmq pop` prints the HANDLE; `-` reads handles, or lines of JSON of `pop`, from stdin.
    """
    return _settle(session, "nack", "to be handed out again", handles, delay=delay)


@click.command()
@click.option("--reason", default="rejected", help="The reason, for people.  [default: rejected]")
@_handles_argument
@with_output
@with_session
def reject(session: Session, handles: tuple[str, ...], reason: str) -> Result:
    """Reject messages: they become dead letters at once.

    `raftmq pop` prints the HANDLE; `-` reads handles, or lines of JSON of `pop`, from stdin.
    """
    return _settle(session, "reject", "dead-lettered", handles, reason=reason)


@click.command()
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    required=True,
    metavar="DURATION",
    help="How long, from now, no other consumer gets them.",
)
@_handles_argument
@with_output
@with_session
def extend(session: Session, handles: tuple[str, ...], seconds: float) -> Result:
    """Extend the leases of messages, and of all messages that were handed out with them.

    `raftmq pop` prints the HANDLE; `-` reads handles, or lines of JSON of `pop`, from stdin.
    """
    done = f"extended to {duration_text(seconds)} from now"
    return _settle(session, "extend", done, handles, delay=seconds)


def _settle(
    session: Session, action: Any, done: str, handles: tuple[str, ...], **details: Any
) -> Result:
    wanted = list(_read(handles))

    async def call(mq: "Client") -> tuple[list[bool], list[str]]:
        settled = await mq.settle(wanted, action, **details)
        late = [
            handle for handle, is_settled in zip(wanted, settled, strict=True) if not is_settled
        ]
        if action != "ack":
            return settled, []
        # A repeated `ack` must not fail: its message is acknowledged, as the script wanted.
        asked = late[:ACKED_BEFORE_MAX]
        was_acked = await mq.acked_before(asked) if asked else []
        return settled, [handle for handle, was in zip(asked, was_acked, strict=True) if was]

    settled, before = session.run(call)
    is_done = dict(zip(wanted, settled, strict=True)) | dict.fromkeys(before, True)
    late = [handle for handle in wanted if not is_done[handle]]
    again = f", {counted(len(before), 'message')} before" if before else ""
    summary = Note(f"{counted(sum(settled), 'message')} {done}{again}")
    not_settled = Failure(
        f"{counted(len(late), 'message')} not settled: their time ran out, or they were settled "
        "before",
        fix="what is not done with comes again: `raftmq pop` takes it, with a new handle",
    )
    return Result(
        {"settled": sum(settled), "acked_before": before, "not_settled": late},
        [summary, *(Note(f"no longer ours: {handle}") for handle in late)],
        failure=not_settled if late else None,
    )


def _read(handles: tuple[str, ...]) -> Iterator[str]:
    """The handles, with `-` replaced by those on stdin."""
    for each in handles:
        if each != "-":
            yield each
            continue
        for line in sys.stdin:
            if line.lstrip().startswith("{"):
                yield _handle_in(line)
            else:
                yield from line.split()


def _handle_in(line: str) -> str:
    """The handle in a line that `pop -o json` printed."""
    try:
        return str(json.loads(line)["handle"])
    except (ValueError, KeyError) as error:
        message = f"a line of stdin is no JSON with a handle: {line.strip()[:60]!r}"
        raise click.UsageError(message) from error
