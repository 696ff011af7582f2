"""Figures are read off the output of the peers' own tools."""

import re

import pytest

from bench.peers import own_tools

PRODUCER = """\
Warmup first 7721 records. Steady state results will print after the complete test summary.
1 records sent, 0.2 records/sec (0.00 MB/sec), 5431.0 ms avg latency, 5431.0 ms max latency.
30884 records sent, 4090.05 records/sec (0.39 MB/sec), 441.35 ms avg latency, \
5431.00 ms max latency, 366 ms 50th, 892 ms 95th, 900 ms 99th, 902 ms 99.9th.
23163 steady state records sent, 18545.23 records/sec (1.77 MB/sec), 520.43 ms avg latency, \
904.00 ms max latency, 420 ms 50th, 894 ms 95th, 901 ms 99th, 902 ms 99.9th.
"""

CONSUMER = """\
start.time, end.time, data.consumed.in.MB, MB.sec, nMsg.sec, data.consumed.in.nMsg, fetch.time.ms
2026-11-27 12:30:01:000, 2026-11-27 12:30:03:000, 2.2, 1.1, 11581.5, 23163, 1900
"""


def test_figures_of_a_producer_are_those_after_its_warm_up() -> None:
    found = re.findall(own_tools._FIGURES, PRODUCER, re.MULTILINE)
    assert found[-1] == ("23163", "18545.23", "420", "901")


def test_figures_of_a_consumer_stand_below_their_names() -> None:
    row = own_tools._table_row("a warning, with a comma\n" + CONSUMER)
    assert row["data.consumed.in.nMsg"] == "23163"
    assert row["fetch.time.ms"] == "1900"


def test_consumer_that_got_nothing_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="printed no figures"):
        own_tools._table_row(CONSUMER.splitlines()[0])
