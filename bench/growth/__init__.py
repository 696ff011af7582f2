"""The cost of work as it grows: backlog, queues, restarts, slow and dead followers and readers.

Start reading at `outcome.py` (what a scenario reports), then `nodes.py` (a cluster that is watched,
paused and killed) and `loads.py` (alternating windows), then one scenario, such as `backlog.py`.

    python -m bench.growth backlog

A scenario compares a cluster with itself: the plain case and the grown one take turns in one run,
a few seconds each, so that other load on the machine disturbs both. The result is the median of the
ratios of neighbouring windows. Beside the rate stands the processor time that the servers spent on
a million messages: this time hardly depends on other load, and shows a cost of the servers even
where the client is the bottleneck.
"""
