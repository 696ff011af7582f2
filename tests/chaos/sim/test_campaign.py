"""The campaign of CI: 65 runs of whole brokers, half a minute of simulated time each. A patient
schedule, whose service is judged in windows, needs a minute.

The seeds are fixed, so that a failure is one that can be had again; `raftmq chaos run --world sim`
plays others. Every tenth seed is played again in another process, which hashes otherwise.
"""

import pytest

from raftmq.chaos.campaign import Plan
from raftmq.chaos.faults import Schedule, World, is_patient
from raftmq.chaos.sim.run import WorkloadName, run
from raftmq.checkers import total_queue
from raftmq.checkers.log import anomalies
from raftmq.checkers.objects import zones
from tests.chaos.sim.processes import trace_hash_in_another_process

SECONDS = 30.0
PATIENT_SECONDS = 60.0
SEEDS = range(500, 565)
AGAIN_EVERY = 10
WORKLOADS: tuple[WorkloadName, ...] = ("log", "log", "queue", "register")
CHECKERS: dict[WorkloadName, tuple[str, ...]] = {
    "log": (total_queue.CHECKER, anomalies.CHECKER),
    "queue": (total_queue.CHECKER,),
    "register": (zones.CHECKER,),
}
"""By workload: the checkers that compare in each run of it."""


def nodes_of(seed: int) -> int:
    return 5 if seed % 5 == 3 else 3


def workload_of(seed: int) -> WorkloadName:
    return WORKLOADS[seed % len(WORKLOADS)]


def schedule_of(seed: int) -> Schedule:
    seconds = PATIENT_SECONDS if is_patient(seed) else SECONDS
    return Plan(World.SIM, seconds=seconds, nodes=nodes_of(seed)).schedule(seed)


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults_break_no_promise(seed: int) -> None:
    workload, is_liveness = workload_of(seed), seed % 8 == 1
    schedule, nodes = schedule_of(seed), nodes_of(seed)
    outcome = run(schedule, workload=workload, is_liveness=is_liveness, nodes=nodes)
    assert outcome.is_good, str(outcome)
    assert all(outcome.compared[checker] for checker in CHECKERS[workload])
    if seed % AGAIN_EVERY == 0:
        again = trace_hash_in_another_process(
            schedule, workload=workload, is_liveness=is_liveness, nodes=nodes
        )
        assert outcome.trace_hash == again
