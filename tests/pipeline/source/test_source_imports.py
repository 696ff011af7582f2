"""Spark looks for sources in processes of their own, each of which waits for its imports."""

import subprocess
import sys


def test_finding_the_source_loads_no_client() -> None:
    program = (
        "import sys, pyspark.sql.datasource\n"
        "before = set(sys.modules)\n"
        "import pyspark_raftmq\n"
        "heavy = {'numpy', 'pyarrow', 'trio', 'anyio', 'raftmq.client'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))\n"
        "source = pyspark_raftmq.DefaultSource({'subscribe': 'orders', 'url': 'raftmq://h'})\n"
        "source.schema()\n"
        "print(sorted(heavy & (set(sys.modules) - before)))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]
