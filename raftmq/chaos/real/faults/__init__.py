"""The faults of real processes: how each one is made.

Start reading at `nemesis` (a schedule, played), then `handlers`.
"""
