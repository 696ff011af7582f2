"""Consumers that pop, delayed messages and transactions on three real processes: a leader dies, and
a consumer stands still.

How much they get done in that time depends on the machine. That messages become dead letters, and
transactions end in each way, is asserted of simulated runs: see `sim/test_pop_campaign.py`.
"""

from pathlib import Path

import pytest

from raftmq.chaos.faults import Event, Schedule
from raftmq.chaos.real import run

EVENTS = (
    Event(1000, "client-hang", (), 4000),
    Event(2000, "kill-leader", (1,)),
    Event(6000, "client-ack-late"),
    Event(7000, "client-churn"),
)


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.timeout(200)
def test_leader_that_dies_costs_no_message_and_no_lease(tmp_path: Path) -> None:
    outcome = run(Schedule(1, 12.0, EVENTS), workload="pop", folder=tmp_path)
    assert outcome.is_good, str(outcome)
    assert outcome.counts["pop a: again"] > 10
    assert outcome.counts["pop f: acked"] > 10
    assert outcome.counts["withheld: delayed"] > 0
    assert outcome.counts["withheld: of transactions"] > 0
    assert outcome.counts["fault kill-leader"] == 1
