"""Compares two sides key by key: topics, archives, tables; `raftmq pipeline reconcile`.

    left = Side.parse("topic:orders", key="key", amount="get_json_object(body_text, '$.cents')")
    right = Side.parse("sqlite:shop.db?table=payments", key="order_id", amount="cents")
    compare(left.load(spark), right.load(spark))

Start reading at `sides` (what a side is, and how it is pinned), then `compare` (digests first, then
the differing buckets), `oversell` (keys of which more was sold than there was), and `job` (what is
stored).

Left out: databases by JDBC, which need a driver's jar; differences of more than one amount a key.
"""

from .compare import Comparison, compare
from .job import Outcome, reconcile, store
from .oversell import oversold
from .sides import Side

__all__ = ["Comparison", "Outcome", "Side", "compare", "oversold", "reconcile", "store"]
