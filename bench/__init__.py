"""Benchmarks: raftmq beside the floor and its peers, measured in one run.

Start reading at `system.py` (what a system under test is), then `floor.py` (bare replication),
then `run.py` (what `make bench` starts). `README.md` says how to read the numbers.
"""
