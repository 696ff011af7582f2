"""`raftmq pipeline doctor`: examine what Spark needs on this machine."""

import click

from raftmq.cli.node.findings import Finding, show
from raftmq.cli.output import output_option


@click.command()
@output_option()
def doctor(output: str) -> int:
    """Examine Java, Spark and their versions, and run one query; say what to mend.

    Exits with 4 if something fails. Starting Spark takes some seconds.
    """
    from raftmq.pipeline.doctor import examine

    findings = []
    for fact in examine():
        verdict = "fail" if not fact.is_well else "warn" if fact.fix else "ok"
        findings.append(Finding(fact.check, verdict, fact.found, fact.fix))
    return show(findings, output)
