"""The faults of the simulated world: their handlers, and the effects by which they count as struck.

Start reading at `nemesis` (a schedule, played).
"""
