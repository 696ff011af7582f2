"""`raftmq config`: settings that change while the cluster runs."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import ExitCode
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.options import yes_option
from raftmq.cli.output import Lines, Note, Result, Table, note, time_text, with_output
from raftmq.cli.session import Session, with_session
from raftmq.cli.topic import confirm, require_terminal
from raftmq.cli.values import DURATION, SIZE
from raftmq.errors import RaftmqError
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.client.admin.settings import Difference
    from raftmq.wire.settings import SettingsChangeView

# As in `raftmq.machine.catalog.settings`, whose import would slow down the help.
CLUSTER = "cluster"
SCOPES = (CLUSTER, "node", "topic", "client")
"""The nodes or clients that a setting holds for."""
NODE_SCOPES = (CLUSTER, "node")
"""Those whose settings nodes obey."""
SHOWN = 20
"""Changes that `history` shows without an option."""

scope_argument = click.argument("scope", type=click.Choice(SCOPES))
words_argument = click.argument("words", nargs=-1, required=True, metavar="[OF] NAME...")


@click.group(cls=HintedGroup)
def config() -> None:
    """Settings that change while the cluster runs: set them, see who obeys them, take them back.

    Those of the cluster and of a node go over what the nodes' files say; some hold at once, the
    others from a node's next start. Those of a topic and of a client are obeyed by producers and
    consumers within a moment; how long a topic's messages are kept, by the nodes. A client is named
    by the program (`raftmq.connect(name=)`); '*' is every client. `raftmq config names` lists all
    that can be set.

    \b
    raftmq config set cluster log.retention_ms=7d
    raftmq config set node 3 limits.copy_bytes_per_second=100MB
    raftmq config set topic orders producer.linger_ms=5 producer.batch_bytes=1MiB
    raftmq config set topic orders log.retention_ms=30d
    raftmq config set client '*' consumer.is_paused=true
    raftmq config rollback 7
    """


@config.command()
@click.argument("scope", type=click.Choice(SCOPES), required=False)
@click.argument("of", required=False, default="")
@with_output
@with_session
def get(session: Session, scope: str | None, of: str) -> Result:
    """Show all settings that are set, or those of a SCOPE (cluster, node N, topic T, client C)."""
    if scope is not None:
        _check_of(scope, of)
    found = session.run(lambda mq: mq.settings.get(scope, of))
    rows = [
        (each.scope_text, each.name, _shown(each.value), _holds(_is_live(each.scope, each.name)))
        for each in found.settings
    ]
    none = Note("nothing is set: `raftmq config names` lists what can be")
    columns = ["SCOPE", "!SETTING", "VALUE", "HOLDS"]
    return Result(found, [Table(columns, rows, f"version {found.version}") if rows else none])


@config.command("set")
@scope_argument
@click.argument("words", nargs=-1, required=True, metavar="[OF] NAME=VALUE...")
@with_session
def set_(session: Session, scope: str, words: tuple[str, ...]) -> None:
    """Set NAME=VALUE, one or more as one change.

    A time may be written as 30s or 7d, and a size as 64MiB; without a unit they are milliseconds
    and bytes.
    """
    of, rest = _split(scope, words)
    values = dict(_pair(word) for word in rest)
    version = session.run(lambda mq: mq.settings.put(values, scope=scope, of=of))
    place = f"{scope} {of}".rstrip()
    note(f"version {version}: {place} has {', '.join(rest)}")
    late = [name for name in values if not _is_live(scope, name)]
    if late:
        note(f"{', '.join(late)}: each node obeys from its next start (`raftmq cluster roll`)")


@config.command()
@scope_argument
@words_argument
@with_session
def unset(session: Session, scope: str, words: tuple[str, ...]) -> None:
    """Take settings out: the nodes' files, or the applications, decide again."""
    of, names = _split(scope, words)
    version = session.run(
        lambda mq: mq.settings.put(dict.fromkeys(names, None), scope=scope, of=of)
    )
    note(f"version {version}: {scope} {of}".rstrip() + f" no longer has {', '.join(names)}")


@config.command()
@click.argument("beginning", required=False, default="")
@with_output
def names(beginning: str) -> Result:
    """List all that can be set, or what begins with BEGINNING, as log. or producer."""
    from raftmq.broker.dynamic.known import OF_CLIENTS, OF_NODES, scopes_of

    rows = []
    for name, each in {**OF_NODES, **OF_CLIENTS}.items():
        if name.startswith(beginning):
            default = "as the program says" if each.default is None else _shown(each.default)
            rows.append((name, ", ".join(scopes_of(name)), default, _holds(each.is_live)))
    columns = ["!SETTING", "SCOPE", "DEFAULT", "HOLDS"]
    none = Note(f"no setting begins with {beginning}")
    return Result(
        [dict(zip(("name", "scope", "default", "holds"), row, strict=True)) for row in rows],
        [Table(columns, rows) if rows else none],
    )


@config.command()
@click.option("-n", "--count", type=click.IntRange(1), default=SHOWN, show_default=True)
@with_output
@with_session
def history(session: Session, count: int) -> Result:
    """Show the newest changes: who set what, when, and what was there before."""
    changes = session.run(lambda mq: mq.settings.history())[-count:]
    rows = [row for change in changes for row in _rows(change)]
    columns = [">VERSION", "TIME", "USER", "SCOPE", "!SETTING", "BEFORE", "AFTER"]
    return Result(Lines(changes), [Table(columns, rows) if rows else Note("no changes yet")])


@config.command()
@click.argument("version", type=click.IntRange(0))
@yes_option
@with_session
def rollback(session: Session, version: int, yes: bool) -> None:
    """Make all settings what they were at VERSION, as a new change; 0: nothing was set."""
    if not yes:
        require_terminal()
    found = session.run(lambda mq: mq.settings.difference(version))
    if not found.changes:
        note(f"nothing to do: the settings are those of version {version}")
        return
    for then, now in found.changes:
        note(f"{now.scope_text} {now.name}: {_shown(now.value)} -> {_shown(then.value)}")
    if not yes:
        confirm(f"Change {counted(len(found.changes), 'setting')}?")
    new = session.run(lambda mq: mq.settings.rollback(version, seen=found.version))
    note(f"version {new}: the settings are those of version {version}")


@config.command()
@click.argument("version", type=click.IntRange(0), required=False)
@with_output
@with_session
def diff(session: Session, version: int | None) -> Result:
    """Compare what is set with what each node runs with; or with VERSION, then and now.

    Shown are the settings that are set, and those that differ between nodes; '*': the node obeys
    another value from its next start. The exit code is 4 if a node does not obey.
    """
    if version is not None:
        found = session.run(lambda mq: mq.settings.difference(version))
        return _since(version, found)
    return session.run(_nodes_diff)


def _since(version: int, found: "Difference") -> Result:
    rows = [
        (now.scope_text, now.name, _shown(then.value), _shown(now.value))
        for then, now in found.changes
    ]
    columns = ["SCOPE", "!SETTING", f"VERSION {version}", f"VERSION {found.version}"]
    none = Note(f"the settings are those of version {version}")
    return Result(found, [Table(columns, rows) if rows else none])


async def _nodes_diff(mq: "Client") -> Result:
    found, view = await mq.settings.get(), await mq.admin.cluster()
    nodes: dict[int, dict[str, Any]] = {}
    notes: list[str] = []
    for node in sorted(each.id for each in view.nodes):
        try:
            nodes[node] = (await mq.admin.status(node))["settings"]
        except RaftmqError as error:
            notes.append(f"node {node}: {error}")
        except KeyError:
            notes.append(f"node {node} has older software, which knows no dynamic settings")
    notes += [f"node {node}: {each['problem']}" for node, each in nodes.items() if each["problem"]]
    of_nodes = [each for each in found.settings if each.scope in NODE_SCOPES]
    named = {each.name for each in of_nodes}
    running = [each["running"] for each in nodes.values()]
    every = {name for each in running for name in each}
    named |= {name for name in every if len({str(each.get(name)) for each in running}) > 1}
    rows = []
    for name in sorted(named):
        said = ", ".join(f"{s.scope_text}: {_shown(s.value)}" for s in of_nodes if s.name == name)
        cells = [
            _shown(each["running"].get(name)) + ("*" if name in each["waiting"] else "")
            for each in nodes.values()
        ]
        rows.append((name, said or "-", *cells))
    columns = ["!SETTING", "SET", *(f"NODE {node}" for node in nodes)]
    none = Note("nothing is set, and all nodes run with the same settings")
    return Result(
        {"version": found.version, "settings": found.settings, "nodes": nodes},
        [Table(columns, rows) if rows else none],
        notes=notes,
        code=ExitCode.UNHEALTHY if notes else ExitCode.OK,
    )


@config.command()
@with_session
def watch(session: Session) -> None:
    """Print each change when it comes, until Ctrl-C."""
    session.run(_watch)


async def _watch(mq: "Client") -> None:
    version = (await mq.settings.get()).version
    note(f"version {version}; waiting for changes")
    while True:
        for change in await mq.settings.wait_for_change(version):
            version = change.version
            for number, at, user, place, name, before, after in _rows(change):
                click.echo(f"{number} {at} {user} {place} {name}: {before} -> {after}")


def _rows(change: "SettingsChangeView") -> list[tuple[int, str, str, str, str, str, str]]:
    pairs = zip(change.before, change.after, strict=True)
    head = change.version, time_text(change.at_ms), change.user or "-"
    return [
        (*head, after.scope_text, after.name, _shown(before.value), _shown(after.value))
        for before, after in pairs
    ]


def _split(scope: str, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The name of the scope, and the words behind it."""
    of, rest = ("", words) if scope == CLUSTER else (words[0], words[1:])
    if "=" in of or ("." in of and not rest):
        raise click.UsageError(f"name the {scope} before the settings, as `{scope} NAME ...`")
    _check_of(scope, of)
    if not rest:
        raise click.UsageError("name a setting: `raftmq config names` lists them")
    return of, rest


def _check_of(scope: str, of: str) -> None:
    if (scope == CLUSTER) is bool(of):
        fitting = f"`{CLUSTER}` takes no name: leave out {of!r}" if of else f"name the {scope}"
        raise click.UsageError(fitting)


def _pair(word: str) -> tuple[str, Any]:
    name, found, text = word.partition("=")
    if not found or not text:
        raise click.UsageError(f"{word!r} is not NAME=VALUE; `unset` takes a setting out")
    return name, _value(name, text)


def _value(name: str, text: str) -> Any:
    """The value of a text: a time for names with _ms, a size for names with _bytes."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d+(_\d+)*", text):
        return int(text)
    try:
        if "_ms" in name:
            return round(DURATION.read(text) * 1000)
        if "_bytes" in name:
            return SIZE.read(text.removesuffix("/s"))
    except ValueError as error:
        raise click.UsageError(f"{name}: {error}") from None
    return text


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value) or "''"


def _holds(is_live: bool) -> str:
    return "at once" if is_live else "from the next start"


def _is_live(scope: str, name: str) -> bool:
    from raftmq.broker.dynamic.known import LIVE

    return scope not in NODE_SCOPES or name in LIVE
