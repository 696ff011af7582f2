"""The faults of the simulated world: the nemesis, own faults, the effects by which faults count.

Start reading at `nemesis` (a schedule, played).
"""
