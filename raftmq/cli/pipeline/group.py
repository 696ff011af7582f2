"""The table of jobs."""

from typing import ClassVar

import click

from raftmq.cli.lazy import LazyGroup


class _Jobs(LazyGroup):
    """The jobs of the pipeline."""

    TABLE: ClassVar = {
        "archive": ("pipeline.archive:archive", "Topics as Parquet files; verify, compact, ls."),
        "cdc": ("pipeline.cdc:cdc", "Changes of a database's table; the table rebuilt."),
        "check": ("pipeline.check:check", "Judge recorded histories too large for one process."),
        "doctor": ("pipeline.doctor:doctor", "Examine Java, Spark and versions; run one query."),
        "live": ("pipeline.live:live", "Windows of time as they happen: page, files, topic."),
        "prepare": (
            "pipeline.prepare:prepare",
            "Let Spark's first query come some seconds sooner.",
        ),
        "reconcile": ("pipeline.reconcile:reconcile", "Do two sides agree, key by key? Oversold?"),
        "replay": ("pipeline.replay:replay", "Send messages of an archive into a topic again."),
        "report": ("pipeline.report:report", "Minutes of topics and groups: in, out, lag; alerts."),
        "trace": ("pipeline.trace:trace", "Histories of all messages; the slowest, quantiles."),
    }


@click.group(cls=_Jobs)
def pipeline() -> None:
    """Jobs on Spark over the messages of a cluster. They need `pip install 'raftmq[spark]'`.

    \b
    raftmq pipeline doctor
    """
