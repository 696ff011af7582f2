"""The data pipeline: messages in and out of Spark, and the jobs that run on it.

Start reading at `session` (a SparkSession with everything in order), then `java` (which Java runs
it), `class_archive` and `spark_home` (how it starts in less time), `folders` (where its files are),
`durable` (files that survive a loss of power) and `errors` (errors with their remedy).

A pipeline is one more consumer and producer: it reaches a cluster through the client package alone.
The pipeline needs the extra `raftmq[spark]`; nothing else of raftmq imports it, and `import
raftmq.pipeline` loads no pyspark.

Rows are compared by digest in four places, none of which can take another's:

| digest | where | why this one |
|---|---|---|
| sums of 64-bit mixes | `archive.digest` | stands in manifests; adds up over files; made of |
| | | Arrow's columns, without an object a row |
| sums of SHA-256's digits | `cdc.digest` | Python makes it of a database's rows, and Spark |
| | | makes the same one of the rebuilt table |
| sums of xxHash64 | `reconcile.compare` | Spark's own hash: both sides are in Spark, which |
| | | makes the sums of all buckets in one pass |
| BLAKE2b, 16 bytes a row | `sink.stored` | a row that collides with a stored one is not sent; |
| | | 1, 1.0, true and "1" differ; rows for later go out in its order |

Invariants:
- A message becomes a row of an Arrow record batch without a Python object of its own.
- A durable log, manifest or checkpoint records what a job has done, so each job can be killed at
  any point and started again.
"""

from .errors import PipelineError
from .session import session

__all__ = ["PipelineError", "session"]
