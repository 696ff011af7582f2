"""The faults of the simulated world: how each one is made, and what must be seen of it.

Start reading at `nemesis` (a schedule, played).
"""
