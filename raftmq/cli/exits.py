"""How a command ends: exit codes, and errors as a sentence with a remedy.

| code | meaning |
|---|---|
| 0 | done, or the reader of stdout has enough (as `head`) |
| 1 | failed: refused, outcome unknown, or a fault of this machine |
| 2 | usage: the command line is wrong |
| 3 | unreachable: no node answered, or no leader was found in time |
| 4 | unhealthy: the cluster or this machine was examined and something is wrong with it |
| 5 | violation: a promise was broken (`raftmq chaos`) |
| 130 | interrupted by Ctrl-C before it was done |
"""

import os
import re
from enum import IntEnum

import click

from raftmq.errors import OutcomeUnknown, RaftmqError, Reason, Rejected, Unavailable

from .printable import printable_lines

COLOR = False if os.environ.get("NO_COLOR") else None
"""Click's argument `color`: False for no colours; None: click looks for a terminal."""


class ExitCode(IntEnum):
    """See the table of this module."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNHEALTHY = 4
    VIOLATION = 5
    INTERRUPTED = 130


class Failure(Exception):
    """An error that was expected: shown as one or two lines, without a traceback."""

    def __init__(self, message: str, *, fix: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.fix = fix
        """The remedy: one sentence, often a command to type. Empty: nothing to add."""
        self.code = code
        """The exit code of the process."""

    def show(self) -> None:
        """Write both lines to stderr."""
        for word, color, text in (("error:", "red", str(self)), ("  fix:", "green", self.fix)):
            if not text:
                continue
            line = f"{click.style(word, fg=color, bold=True)} {printable_lines(text)}"
            click.echo(line, err=True, color=COLOR)


_FIXES = {
    Reason.UNKNOWN_TOPIC: "`raftmq topic list` shows those that exist, "
    "`raftmq topic create NAME` makes one",
    Reason.TOPIC_EXISTS: "choose another name, or `raftmq topic alter NAME --queues N`",
    Reason.BAD_NAME: "use 1 to 127 of A-Z a-z 0-9 . _ - and begin with none of . -",
    Reason.TOO_LARGE: "for bytes, send smaller messages or raise limits.batch_bytes_max on every "
    "node; docs/operations.md has the other limits",
    Reason.OFFSET_OUT_OF_RANGE: "`raftmq topic describe TOPIC` shows what is kept; "
    "`--from earliest` or `raftmq group reset` goes there",
    Reason.UNKNOWN_GROUP: "`raftmq group list` shows the consumer groups that there are; "
    "`raftmq group attach NAME TOPIC` lets one take messages of a topic",
    Reason.GROUP_MODE: "`raftmq group list` shows the mode of each group; "
    "use it in its own, or take another name",
    Reason.UNKNOWN_NODE: "`raftmq cluster status` shows the nodes",
    Reason.CHANGED_MEANWHILE: "look again, then repeat the command",
    Reason.OLD_SOFTWARE: "`raftmq cluster status` names the nodes to upgrade",
    Reason.WRONG_CLUSTER: "give the address of the right cluster with --url or RAFTMQ_URL",
    Reason.TLS: "`raftmqs://HOST:PORT?ca=FILE&cert=FILE` reaches nodes under TLS; "
    "`raftmq cert make` makes certificates",
    Reason.UNAUTHENTICATED: "`raftmqs://HOST:PORT?ca=FILE&login=FILE` logs in by a login file, or "
    "`cert=FILE` by a certificate; an administrator makes a login with "
    "`raftmq user add NAME --login-file FILE`",
    Reason.DENIED: "an administrator sees the rules with `raftmq acl list`, and changes them with "
    "`raftmq acl allow` and `raftmq acl drop`",
    Reason.OVER_QUOTA: "`raftmq quota list` shows the quotas",
    Reason.UNKNOWN_USER: "`raftmq user list` shows those that were added, "
    "`raftmq user add NAME` adds one",
    Reason.BAD_FILTER: "correct the text; `raftmq filter explain TEXT` shows what it means",
    Reason.FELL_DUE: "it is in its queue: consumers have it, or will",
    Reason.TOO_MANY_DELAYED: "send it later, or take back others: `raftmq delay cancel ID`",
    Reason.UNKNOWN_TRANSACTION: "`raftmq tx list` shows those that are open",
    Reason.TRANSACTION_ENDED: "nothing is left to do: the first outcome holds",
    Reason.TOO_MANY_TRANSACTIONS: "`raftmq tx list` shows them, `raftmq tx resolve` ends them",
    Reason.CHANGE_IN_PROGRESS: "wait until `raftmq cluster status` shows it done, then try again",
}

_HANDLES = "`raftmq pop TOPIC -g GROUP` prints handles"
_ARGUMENT_FIXES = {
    "raftmq topic alter": "give more queues than that: a topic loses none",
    "raftmq cluster transfer": "`raftmq cluster status` shows the partition groups",
    "raftmq ack": _HANDLES,
    "raftmq nack": _HANDLES,
    "raftmq reject": _HANDLES,
    "raftmq extend": _HANDLES,
    "raftmq delay cancel": "`raftmq produce TOPIC BODY --delay 1h` prints such an id",
    "raftmq tx resolve": "`raftmq tx list` shows the ids of those that are open",
}
"""By command: the remedy of `BAD_ARGUMENT`, where one helps beside the message."""


_CASES = {
    (Reason.TLS, "mismatch, certificate"): "`raftmq cert show FILE` shows the hosts of the node's "
    "certificate; `raftmq cert make --node N --host HOST` makes one for another host",
    (Reason.TLS, "`ca` is missing"): "name the authority's ca.pem: `raftmqs://HOST:PORT?ca=FILE`",
    (Reason.TLS, "lacks the list"): "`crl` names one file with the crl.pem of each authority in "
    "`ca`, one after the other",
    (Reason.TLS, "needs another certificate"): "`raftmq cert show FILE` tells until when it is "
    "valid; `raftmq cert make` makes another",
    (Reason.TLS, "speaks no TLS"): "`raftmq://HOST:PORT` reaches nodes without TLS",
    (Reason.TLS, "does not accept this client"): "`raftmq cert make --user NAME`, in the folder of "
    "the cluster's authority, makes one for `raftmqs://HOST:PORT?ca=FILE&cert=FILE`",
    (Reason.UNAUTHENTICATED, "the login by token"): "an administrator makes another one: "
    "`raftmq token make USER --login-file FILE`",
    (Reason.UNAUTHENTICATED, "the login of user"): "an administrator gives the user another "
    "password: `raftmq user password NAME --login-file FILE`",
    (Reason.BAD_ARGUMENT, "holds no private key"): "`raftmq cert make --user NAME` writes such a "
    "file, user-NAME.pem",
    (Reason.BAD_ARGUMENT, "is a certificate, no login file"): "`raftmqs://HOST:PORT?ca=FILE&"
    "cert=FILE` logs in by it",
    (Reason.BAD_ARGUMENT, "login file"): "an administrator makes one: "
    "`raftmq user add NAME --login-file FILE` or `raftmq token make NAME --login-file FILE`",
    (Reason.BAD_ARGUMENT, "has queues"): "give one of these queues; "
    "`raftmq topic alter NAME --queues N` adds some",
}
"""By reason and words of the error: the remedy of one case of a reason; the first one counts."""


_NEEDS = {
    "raftmq produce": ("write topic {topic}",),
    "raftmq consume": ("read topic {topic}", "read group {group}"),
    "raftmq pop": ("pop topic {topic}", "read group {group}"),
}
"""By command: the rules that it needs."""


def _rules_for(denied: str) -> str:
    """The remedy of a denial: all rules that the running command needs; empty: it is another one.

    The refusal itself is about the first request of the command alone.
    """
    found = re.search(r"(?:user '([^']+)'|this user) may not (?:see topic '([^']+)')?", denied)
    context = click.get_current_context(silent=True)
    if found is None or context is None or "a rule denies it" in denied:
        return ""
    topic, group = found[2] or context.params.get("topic"), context.params.get("group")
    default = ("describe topic {topic}",) if found[2] else ()
    commands = [
        f"`raftmq acl allow {found[1] or 'USER'} {rule.format(topic=topic, group=group)}`"
        for rule in _NEEDS.get(context.command_path, default)
        if group or "{group}" not in rule
    ]
    return (
        f"an administrator allows it, unless a rule denies it, with {' and '.join(commands)}"
        if commands
        else ""
    )


def _remedy(error: Rejected) -> str:
    """The remedy of a refusal; empty: nothing to add."""
    for (reason, words), fix in _CASES.items():
        if error.reason is reason and words in str(error):
            return fix
    if error.reason is Reason.DENIED and (fix := _rules_for(str(error))):
        return fix
    if error.reason is Reason.BAD_ARGUMENT:
        # The message names the argument, and mostly the right values.
        return _ARGUMENT_FIXES.get(_command_path(), "")
    return _FIXES.get(error.reason, "change the call as it says")


def explained(error: RaftmqError, *, url: str) -> Failure:
    """An error of the client as a `Failure`. `url` is the address that the command used."""
    if "log.reserve_bytes" in str(error):
        fix = "free space on that disk, or lower log.retention_bytes and start the node again"
        code = ExitCode.UNREACHABLE if isinstance(error, Unavailable) else ExitCode.FAILED
        return Failure(str(error), fix=fix, code=code)
    if isinstance(error, Unavailable):
        elsewhere = f"another cluster than {url}; {_examination()}"
        fix = f"--url or RAFTMQ_URL names {elsewhere}"
        if "is starting" in str(error):
            fix = f"start the other nodes of the cluster, if they are down; {fix}"
        elif "no process listens" in str(error) or _was_refused(str(error)):
            fix = "`raftmq up` starts a cluster here; --url or RAFTMQ_URL names other nodes, or "
            fix += elsewhere
        elif any(words in str(error) for words in _SILENT):
            fix = f"a majority of the nodes has to run and answer: start those that do not; {fix}"
        return Failure(str(error), fix=fix, code=ExitCode.UNREACHABLE)
    if isinstance(error, OutcomeUnknown):
        fix = "it may have happened: look before you repeat it, or give it more --timeout"
        return Failure(str(error), fix=fix)
    if isinstance(error, Rejected):
        return Failure(str(error), fix=_remedy(error))
    cause = error.__cause__
    if isinstance(cause, RaftmqError):
        return Failure(str(error), fix=explained(cause, url=url).fix)
    return Failure(str(error), fix="`raftmq doctor` examines this machine and the cluster")


def _was_refused(text: str) -> bool:
    """Whether the URL's addresses refused the connection; a silent process may be a node."""
    return "a first contact" in text and "no answer" not in text


_SILENT = ("no leader", "cannot be reached", "did not answer", "no answer")
"""Words of an `Unavailable` behind which there are nodes that are down or silent."""


def _examination() -> str:
    """The advice after `Unavailable`; never the command that failed."""
    if _command_path() == "raftmq cluster status":
        return "`raftmq doctor` examines this machine, and the logs of the nodes say what they lack"
    return "`raftmq cluster status` examines it"


def _command_path() -> str:
    """The running command, as it was typed; empty: no command runs."""
    context = click.get_current_context(silent=True)
    return "" if context is None else context.command_path


def unwrapped(error: BaseException) -> BaseException:
    """The one exception inside nested groups of one; else the group itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
