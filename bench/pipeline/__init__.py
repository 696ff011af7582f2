"""The speed of the pipeline: Spark reads, writes, judges and runs jobs."""
