"""The findings of an examination, as `raftmq doctor` and other commands show them.

| finding | means |
|---|---|
| ok | nothing to do |
| warn | it works; something will be slow or is unusual |
| fail | it would not work, or not safely: the exit code is 4 |
"""

from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.cli.exits import ExitCode
from raftmq.cli.output import Result, Table


@dataclass(frozen=True, slots=True)
class Finding:
    """One examined thing."""

    check: str
    """The name of the examined thing."""
    verdict: str
    """`ok`, `warn` or `fail`."""
    found: str
    fix: str = ""
    """The remedy; empty: none is needed."""


def result_of(findings: Sequence[Finding]) -> Result:
    """The findings as a command's result, with its exit code."""
    rows = []
    for finding in findings:
        rows.append((finding.verdict, finding.check, finding.found))
        # A fix stands below its finding: beside a long finding it would be overlooked.
        if finding.fix:
            rows.append(("", "", f"fix: {finding.fix}"))
    has_failed = any(finding.verdict == "fail" for finding in findings)
    code = ExitCode.UNHEALTHY if has_failed else ExitCode.OK
    return Result(findings, [Table(["", "CHECK", "FOUND"], rows)], code=code)
