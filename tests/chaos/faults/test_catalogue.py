"""The catalogue of faults."""

from collections import Counter
from itertools import groupby

from raftmq.chaos.faults import FAULTS


def test_kinds_with_one_code_are_variants_that_stand_together() -> None:
    runs = Counter(code for code, _ in groupby(fault.code for fault in FAULTS.values()))
    assert [code for code, times in runs.items() if times > 1] == []
