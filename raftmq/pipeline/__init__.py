"""The data pipeline: messages in and out of Spark, and the jobs that run on it.

Start reading at `session` (a SparkSession with everything in order), then `java` (which Java runs
it), `classes` and `home` (how it starts in less time), `durable` (files that survive a loss of
power) and `errors` (errors with their remedy).

Everything here uses the public client alone: a pipeline is one more consumer and producer. It needs
the extra `raftmq[spark]`; nothing else of raftmq imports it, and `import raftmq.pipeline` loads no
pyspark.

Invariants:
- A message becomes a row of an Arrow record batch without a Python object of its own.
- A durable log, manifest or checkpoint records what a job has done, so each job can be killed at
  any point and started again.
"""

from .errors import PipelineError
from .session import session

__all__ = ["PipelineError", "session"]
