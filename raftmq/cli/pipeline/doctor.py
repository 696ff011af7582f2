"""`raftmq pipeline doctor`: examine what Spark needs on this machine."""

import click

from raftmq.cli.node.findings import Finding, result_of
from raftmq.cli.output import Result, with_output


@click.command()
@with_output
def doctor() -> Result:
    """Examine Java, Spark and their versions, and run one query; say what to mend.

    Exits with 4 if something fails. Starting Spark takes some seconds.
    """
    from raftmq.pipeline.doctor import examine

    findings = []
    for fact in examine():
        verdict = "fail" if not fact.is_well else "warn" if fact.fix else "ok"
        findings.append(Finding(fact.check, verdict, fact.found, fact.fix))
    return result_of(findings)
