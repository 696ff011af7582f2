"""Clients of a run on real processes: their work, and the history of their calls.

Start reading at `work`, then `workload`.
"""
