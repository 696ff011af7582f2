"""Drivers as processes of their own, to be killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.pipeline.nodes import Nodes


@contextmanager
def driver(nodes: Nodes, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`raftmq pipeline …` as a process of its own; at the end nothing of it is left."""
    command = [sys.executable, "-m", "raftmq", "pipeline", *words]
    process = subprocess.Popen(
        command, env=os.environ | {"RAFTMQ_URL": nodes.url}, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
