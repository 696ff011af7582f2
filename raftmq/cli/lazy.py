"""Groups of commands: with hints, and with modules that are imported when a command is called.

A table holds each command's line in the group's help, so that the list needs no import.

Sources: click's documentation on lazily loading subcommands.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import click

SYNONYMS = {
    "add": ("create", "allow"),
    "create": ("add", "make"),
    "delete": ("drop", "remove"),
    "grant": ("allow",),
    "groups": ("group list",),
    "info": ("describe", "show"),
    "lag": ("group lag",),
    "ls": ("list",),
    "nodes": ("cluster status",),
    "passwd": ("password",),
    "publish": ("produce",),
    "read": ("consume",),
    "remove": ("delete", "drop"),
    "rm": ("delete", "remove", "drop"),
    "send": ("produce",),
    "show": ("describe",),
    "start": ("up",),
    "status": ("cluster status",),
    "stop": ("down",),
    "subscribe": ("consume",),
    "topics": ("topic list",),
    "users": ("user list",),
}
"""Names of commands in other systems → ours, where the group has them."""


OF_COMMANDS = ("--url", "--timeout", "-o", "--output")
"""Options that people of other systems write before the command."""


class HintedGroup(click.Group):
    """A group that suggests commands for a name that it does not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command.

        Raises:
            click.UsageError: there is no command of that name.
        """
        name, known = args[0], self.list_commands(ctx)
        if not name.startswith("-") and name not in known and not ctx.resilient_parsing:
            from difflib import get_close_matches

            same = [each for each in SYNONYMS.get(name, ()) if each.split()[0] in known]
            close = same or get_close_matches(name, known)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise click.UsageError(f"there is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options of the group.

        Raises:
            click.UsageError: an option of a command stands before the command.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in OF_COMMANDS:
                raise
            text = (
                f"{error.option_name} stands behind the command, as `raftmq topic list --url URL`"
            )
            raise click.UsageError(text, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command's first sentence whole; click cuts it at 45 characters."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        lines = [(n, each.get_short_help_str(limit=200)) for n, each in found if each is not None]
        with formatter.section("Commands"):
            formatter.write_dl(lines)


class LazyGroup(HintedGroup):
    """A group that imports a command's module when it is called."""

    TABLE: ClassVar[Mapping[str, tuple[str, str]]]
    """Command → (module below `raftmq.cli`:attribute, one line of help)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of the table."""
        return list(self.TABLE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None: there is no command of that name."""
        entry = self.TABLE.get(cmd_name)
        if entry is None:
            return None
        module, attribute = entry[0].split(":")
        command: click.Command = getattr(import_module(f"raftmq.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.TABLE.items()])
