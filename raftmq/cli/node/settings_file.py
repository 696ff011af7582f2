"""The settings of a node as its command line names them: a file, and replacements of some."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import Failure
from raftmq.words import did_you_mean

if TYPE_CHECKING:
    from raftmq.broker.settings import Settings

SETTINGS_PAGE = "docs/reference/settings.md"
SETTINGS_FIX = f"{SETTINGS_PAGE} explains every setting; --set TABLE.NAME=VALUE replaces one"


def settings_options(whose: str, *, example: str) -> Callable[[Any], Any]:
    """A decorator that gives a command `config` and `overrides`, as `read_settings` takes them."""
    overrides = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="TABLE.NAME=VALUE",
        help=f"Replace a setting of the file, as {example} (repeat).",
    )
    config = click.option(
        "-c",
        "--config",
        required=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"The {whose}'s settings; {SETTINGS_PAGE} explains each of them.",
    )
    return lambda command: config(overrides(command))


def read_settings(config: Path, overrides: tuple[str, ...]) -> "Settings":
    """The file's settings with some replaced.

    Raises:
        Failure: the file or an override is wrong; the message says where.
    """
    import tomllib

    import msgspec

    from raftmq.broker.settings import Settings, with_number

    replaced = [_replacement(override) for override in overrides]
    try:
        tables = tomllib.loads(config.read_text())
        for table, values in tables.items():
            part = _named(str(config), "table", table, Settings)
            for name in values if isinstance(values, dict) else ():
                _named(str(config), f"setting in [{table}]", name, part)
        for table, name, value in replaced:
            tables.setdefault(table, {})[name] = value
        return with_number(msgspec.convert(tables, Settings).validate())
    except (ValueError, OSError) as error:
        where = f"{config} with --set {' --set '.join(overrides)}" if overrides else config
        raise Failure(f"{where}: {error}", fix=SETTINGS_FIX) from error


def _replacement(override: str) -> tuple[str, str, Any]:
    """Table, name and value of a `--set`.

    Raises:
        Failure: there is no such setting, or the value has the wrong type.
    """
    import tomllib

    import msgspec

    from raftmq.broker.settings import Settings

    path, found, text = override.partition("=")
    table, dot, name = path.strip().partition(".")
    if not found or not dot:
        what = f"--set {override!r} is not TABLE.NAME=VALUE, as node.id=2"
        raise Failure(what, fix=SETTINGS_FIX)
    where = f"--set {override}"
    part = _named(where, "table", table, Settings)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    try:
        msgspec.convert(value, _named(where, f"setting in [{table}]", name, part))
    except msgspec.ValidationError as error:
        raise Failure(f"{where}: {error}", fix=SETTINGS_FIX) from error
    return table, name, value


def _named(where: str, what: str, name: str, struct: Any) -> Any:
    """The type of a struct's field, by the field's name.

    Raises:
        Failure: the struct has no such field.
    """
    import msgspec

    types = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    if name not in types:
        hint = did_you_mean(name, types) or f"; there are {', '.join(types)}"
        raise Failure(f"{where}: there is no {what} {name}{hint}", fix=SETTINGS_FIX)
    return types[name]
