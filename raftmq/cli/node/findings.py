"""The findings of an examination, as `raftmq doctor` and other commands show them.

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
    """The name of the examined thing."""
    verdict: str
    """`ok`, `warn` or `fail`."""
    found: str
    """The state found."""
    fix: str = ""
    """The remedy; empty: none is needed."""


def show(findings: Sequence[Finding], output: str) -> ExitCode:
    """Print the findings as a table or as JSON, and return the command's exit code."""
    if output == "json":
        print_json([asdict(finding) for finding in findings])
    else:
        # A fix stands below its finding: beside a long finding it would be overlooked.
        rows = []
        for finding in findings:
            rows.append((finding.verdict, finding.check, finding.found))
            if finding.fix:
                rows.append(("", "", f"fix: {finding.fix}"))
        print_table(["", "CHECK", "FOUND"], rows)
    has_failed = any(finding.verdict == "fail" for finding in findings)
    return ExitCode.UNHEALTHY if has_failed else ExitCode.OK
