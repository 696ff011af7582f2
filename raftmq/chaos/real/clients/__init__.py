"""Clients of a run on real processes: what they do, and what they were told.

Start reading at `work`, then `workload`.
"""
