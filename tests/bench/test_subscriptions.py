"""The benchmark of filtered groups: its scan stands in for the node's index of filters."""

from bench.alone.subscriptions import Scanned
from raftmq.filters.index import Matches


def test_result_of_the_scan_has_all_that_the_node_asks_of_the_index() -> None:
    asked = {name for name in vars(Matches) if not name.startswith("_")}
    scanned = Scanned({})
    assert {name for name in asked if hasattr(scanned, name)} == asked
