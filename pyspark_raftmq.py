"""Spark finds `format("raftmq")` here by itself: it looks for modules named `pyspark_*`."""

from raftmq.pipeline.source.table import MessageSource as DefaultSource

__all__ = ["DefaultSource"]
