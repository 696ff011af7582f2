"""Runs in processes of their own."""

import os
import subprocess
import sys

from raftmq.chaos.faults import Schedule
from raftmq.chaos.sim.run import WorkloadName

PROGRAM = """\
import sys
from raftmq.chaos.faults import Schedule
from raftmq.chaos.sim.run import run
schedule, workload, is_liveness, nodes = sys.argv[1:]
outcome = run(
    Schedule.from_json(schedule),
    workload=workload,
    is_liveness=is_liveness == "True",
    nodes=int(nodes),
)
print(outcome.trace_hash)
"""


def trace_hash_in_another_process(
    schedule: Schedule,
    *,
    hash_seed: str = "1",
    workload: WorkloadName = "log",
    is_liveness: bool = False,
    nodes: int = 3,
) -> str:
    """The trace hash of a run in a process whose hashes of texts are others."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    options = [schedule.to_json(), workload, str(is_liveness), str(nodes)]
    command = [sys.executable, "-c", PROGRAM, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()
