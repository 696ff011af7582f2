"""The faults of real processes, and the handlers that make them.

Start reading at `nemesis` (a schedule, played), then `handlers`.
"""
