"""The report: per minute, what came into each topic and what each consumer group made of it.

    logs of partition groups ──a task each──> facts ──> minutes ──> Parquet, alerts, pictures

Start reading at `tables` (what comes out), then `rounds` (the rounds and what a crash leaves),
`minute_fold` (events become facts), `minute_ledger` (facts become minutes) and `rules` (alerts).

Events are the broker's account of each record of a log (`raftmq.client.Events`); clients measure
nothing, so the work of clients that died is in the report, too.
"""

from .rounds import Report, Step, opened

__all__ = ["Report", "Step", "opened"]
