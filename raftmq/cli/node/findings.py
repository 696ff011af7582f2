"""What an examination found, as `raftmq doctor` and its like show it.

| finding | means |
|---|---|
| ok | nothing to do |
| warn | it works; something will be slow or is unusual |
| fail | it would not work, or not safely: the exit code is 4 |
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from raftmq.cli.exits import ExitCode
from raftmq.cli.output import print_json, print_table


@dataclass(frozen=True, slots=True)
class Finding:
    """One examined thing."""

    check: str
    """What was examined."""
    verdict: str
    """`ok`, `warn` or `fail`."""
    found: str
    """What it is like."""
    fix: str = ""
    """What to do; empty if nothing."""


def show(findings: Sequence[Finding], output: str) -> ExitCode:
    """Print what was found, as a table or as JSON; how the command ends."""
    if output == "json":
        print_json([asdict(finding) for finding in findings])
    else:
        # A fix stands below what it mends: beside a long finding nobody would see it.
        rows = []
        for finding in findings:
            rows.append((finding.verdict, finding.check, finding.found))
            if finding.fix:
                rows.append(("", "", f"fix: {finding.fix}"))
        print_table(["", "CHECK", "FOUND"], rows)
    has_failed = any(finding.verdict == "fail" for finding in findings)
    return ExitCode.UNHEALTHY if has_failed else ExitCode.OK
