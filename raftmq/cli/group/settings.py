"""`raftmq group create` and related commands: a consumer group's settings and its topics."""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import Failure
from raftmq.cli.names import GROUP, TOPIC
from raftmq.cli.options import option, with_options, yes_option
from raftmq.cli.output import Note, Result, Table, duration_text, note, with_output
from raftmq.cli.printable import printable
from raftmq.cli.session import Session, with_session
from raftmq.cli.topic import confirm
from raftmq.cli.values import DURATION, SCHEDULE

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client import Backlog, Client, GroupSettings

MODES = ("pop", "ordered", "broadcast", "pull")
"""The modes of a group."""


@dataclass(frozen=True, slots=True)
class _Changing:
    """The settings that `create` and `alter` set; None: not given."""

    attempts_max: int | None = option(
        "--attempts",
        type=click.IntRange(1),
        help="A message that failed this many times is a dead letter.",
    )
    schedule: tuple[float, ...] | None = option(
        "--schedule",
        type=SCHEDULE,
        metavar="SCHEDULE",
        help="How long a message waits after its first failure, its second, ...; the last one "
        "repeats. A list, as 10s,1m,1h, or a rule: '1s*2..1h' begins with 1s, doubles, and "
        "ends with 1h.",
    )
    invisible: float | None = option(
        "--invisible",
        type=DURATION,
        metavar="DURATION",
        help="Length of a lease if the consumer does not give one.",
    )
    is_blocking: bool | None = option(
        "--block/--no-block",
        default=None,
        help="Ordered: a message that failed for the last time blocks the messages after it.",
    )

    @property
    def given(self) -> dict[str, Any]:
        """The settings that were given, as `Admin.create_consumer_group` takes them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def check_fits(self, mode: str) -> None:
        """Refuse options without a meaning in this mode: they would be stored and never obeyed.

        Raises:
            click.UsageError: such an option was given.
        """
        if self.given and mode in ("pull", "broadcast"):
            name = next(iter(self.given))
            flag = {"attempts_max": "--attempts", "is_blocking": "--block"}.get(name, f"--{name}")
            text = f"{flag} is for groups that pop: one of mode {mode} reads by offset"
            raise click.UsageError(text)


@dataclass(frozen=True, slots=True)
class _Policy(_Changing):
    """The settings that `create` sets; None: not given."""

    order: str | None = option(
        "--order",
        type=click.Choice(["key", "queue"]),
        help="Ordered: messages stay in order within a key, or within a queue; this never changes.",
    )
    run: int | None = option(
        "--run",
        type=click.IntRange(1, 65_536),
        help="Ordered by key: messages of one key that a consumer may have in hand; 1: one after "
        "the other. This never changes.  [default: 65536]",
    )

    def check_fits(self, mode: str) -> None:
        """See `_Changing`."""
        if self.order is not None and mode != "ordered":
            message = f"--order is for --mode ordered: a group of mode {mode} has none"
            raise click.UsageError(message)
        if self.run is not None and (mode != "ordered" or self.order == "queue"):
            message = "--run is for groups that are ordered by key: no other group has runs"
            raise click.UsageError(message)
        _Changing.check_fits(self, mode)


@click.command()
@click.argument("name")
@click.option(
    "-m",
    "--mode",
    type=click.Choice(MODES),
    default="pop",
    help="How the group consumes; this never changes.  [default: pop]",
)
@with_options(_Policy)
@with_output
@with_session
def create(session: Session, options: _Policy, name: str, mode: str) -> Result:
    """Create a consumer group. A group with the same settings is left as it is.

    The first consumer of a group creates the group, too, with the default settings: 17 attempts,
    10s to 2h between them, invisible for 30s.

    \b
    pop        each message goes to one consumer, which settles it: raftmq pop, raftmq ack
    ordered    the same, and the messages of a key come in order
    broadcast  each instance sees each message
    pull       consumers read by offset: raftmq consume

    \b
    raftmq group create billing --attempts 5 --schedule 1s,10s,1m
    raftmq group create mail --attempts 20 --schedule '1s*2..1h'
    raftmq group create ledger --mode ordered --order key --block
    """
    options.check_fits(mode)
    wanted = options.given

    async def call(mq: "Client") -> "GroupSettings":
        for found in await mq.admin.consumer_groups(name=name):
            if found.mode == mode and (other := _others(found, wanted)):
                fix = f"`raftmq group alter {name}` changes them"
                if {"order", "run"} & set(other):
                    fix = "a group keeps its order and run: take another name, or delete it"
                raise Failure(
                    f"consumer group {name!r} exists with other settings",
                    fix=f"{fix}; `raftmq group describe {name}` shows them",
                )
            if found.mode == mode:
                return found
        return await mq.admin.create_consumer_group(name, mode, **wanted)

    return _result(session.run(call))


@click.command()
@click.argument("name", type=GROUP)
@with_options(_Changing)
@with_output
@with_session
def alter(session: Session, options: _Changing, name: str) -> Result:
    """Change settings of a consumer group; settings that are not given stay.

    Messages in hand and messages that wait keep their times. The mode, the order and the run never
    change.

    \b
    raftmq group alter billing --attempts 3
    """
    if not options.given:
        raise click.UsageError("say what is to change: --attempts, --schedule, --invisible, ...")

    async def call(mq: "Client") -> "GroupSettings":
        settings = await known_settings(mq, name)
        options.check_fits(settings.mode)
        kept = {each.name: getattr(settings, each.name) for each in fields(_Policy)}
        return await mq.admin.create_consumer_group(name, settings.mode, **(kept | options.given))

    return _result(session.run(call))


@click.command()
@click.argument("name", type=GROUP)
@yes_option
@click.option("--force", is_flag=True, help="Delete a group with members: they end with an error.")
@with_session
def delete(session: Session, name: str, yes: bool, force: bool) -> None:
    """Delete a consumer group after asking, with its filters, committed offsets, leases and dead
    letters.

    Messages stay where they are. The instances of a broadcast group are deleted with it;
    NAME@INSTANCE names one instance. Members must have left, unless --force is given. Stop
    consumers that read by offset without being members: their next commit creates the group again.
    """
    if not yes:
        confirm(f"Delete consumer group {name!r} with all that it has committed, in hand or dead?")
    session.run(lambda mq: mq.admin.delete_consumer_group(name, force=force))
    note(f"deleted {name}")


@click.command()
@click.argument("name", type=GROUP)
@click.argument("topic", type=TOPIC)
@click.option(
    "-m",
    "--mode",
    type=click.Choice(MODES),
    help="How a new group consumes; an existing group keeps its mode.  [default: pop]",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    help="Where it begins.  [default: earliest]",
)
@with_session
def attach(session: Session, name: str, topic: str, mode: str | None, start: str) -> None:
    """Attach a consumer group to a topic before it has consumers, so that it misses no message.

    The first consumer attaches the group, too. An attached group stays as it is.
    """

    async def call(mq: "Client") -> int:
        found = await mq.admin.consumer_groups(name=name)
        usual = found[0].mode if found else "pop"
        return await mq.admin.attach(topic, name, mode=mode or usual, start=start)

    number = session.run(call)
    note(f"{name} takes messages of {topic}: attachment {number}")


@click.command()
@click.argument("name", type=GROUP)
@click.argument("topic", type=TOPIC)
@yes_option
@with_session
def detach(session: Session, name: str, topic: str, yes: bool) -> None:
    """Detach a consumer group from a topic, after asking.

    The group's leases and dead letters of the topic are forgotten.
    """
    if not yes:
        confirm(f"Detach {name!r} from {topic!r}, with all that it has in hand or dead?")
    was_attached = session.run(lambda mq: mq.admin.detach(topic, name))
    note(f"{name} takes no more of {topic}" if was_attached else f"{name} took none of {topic}")


COMMANDS = (create, alter, delete, attach, detach)
"""Commands of `raftmq group`."""


async def known_settings(mq: "Client", name: str) -> "GroupSettings":
    """The settings of a group that must exist.

    Raises:
        Failure: the group does not exist, or was never created.
    """
    found = await mq.admin.consumer_groups(name=name)
    if not found:
        raise Failure(
            f"there is no consumer group {name!r} with a mode and settings",
            fix=f"`raftmq group create {name}` makes it, `raftmq group list` shows those there are",
        )
    return found[0]


def settings_lines(settings: "GroupSettings") -> list[str]:
    """The settings in a few lines, for people."""
    delays = " ".join(map(duration_text, settings.schedule))
    lines = [f"group      {printable(settings.name)}", f"mode       {settings.mode}"]
    if settings.mode in ("pop", "ordered"):
        # Groups that read by offset have no leases and no retries.
        lines.append(f"invisible  {duration_text(settings.invisible)}")
        lines.append(f"attempts   {settings.attempts_max}, waiting {delays}")
    if settings.mode == "ordered":
        then = "blocks what comes after it" if settings.is_blocking else "is a dead letter"
        lines.append(f"order      by {settings.order}; what failed for the last time {then}")
    if settings.mode == "ordered" and settings.order == "key":
        lines.append(f"run        up to {settings.run} messages of a key in one hand")
    return lines


def attachments_table(settings: "GroupSettings") -> Table | Note:
    """The group's topics."""
    rows = [
        (each.topic, "latest" if each.is_latest else "earliest", each.number)
        for each in settings.attachments
    ]
    none = f"it takes messages of no topic yet: `raftmq group attach {settings.name} TOPIC`"
    return Table(["TOPIC", "BEGAN AT", ">ATTACHMENT"], rows) if rows else Note(none)


def backlogs_table(backlogs: "list[Backlog]") -> Table:
    """The backlog of each queue; rare columns only if one is not 0."""
    columns: dict[str, Callable[[Backlog], object]] = {
        "TOPIC": lambda each: each.topic,
        ">QUEUE": lambda each: each.queue,
        ">NEXT": lambda each: each.next,
        ">END": lambda each: each.end,
        ">IN HAND": lambda each: each.leased,
        ">WAITING": lambda each: each.waiting,
        ">READY": lambda each: each.ready,
        ">DEAD": lambda each: each.dead,
        ">ACKED": lambda each: each.acked,
        ">PASSED": lambda each: each.passed,
        ">LOST": lambda each: each.lost,
        ">PURGED": lambda each: each.purged,
        ">LAG": lambda each: each.lag,
    }
    for name in (">PASSED", ">LOST", ">PURGED"):
        if not any(map(columns[name], backlogs)):
            del columns[name]
    return Table(list(columns), [[cell(each) for cell in columns.values()] for each in backlogs])


def _result(settings: "GroupSettings") -> Result:
    return Result(settings, settings_lines(settings))


def _others(settings: "GroupSettings", wanted: dict[str, Any]) -> list[str]:
    """The wanted settings that have another value in the group."""
    have = settings._asdict()
    return [name for name, value in wanted.items() if have[name] != value]
