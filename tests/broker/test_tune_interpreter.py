"""A process that is a node keeps the memory of the buffers that it frees."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from raftmq.broker.system_world import tune_interpreter
if sys.argv[1] == "tuned":
    tune_interpreter()
for round in range(12):
    if round == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [bytes([round]) * (4 << 20) for _ in range(4)]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(mode: str) -> int:
    command = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_buffers_of_a_node_cost_page_faults_once() -> None:
    pages = 4 * (4 << 20) // 4096
    assert _page_faults("plain") > pages
    assert _page_faults("tuned") < pages
