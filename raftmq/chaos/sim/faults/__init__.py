"""The faults of the simulated world: the player, own faults, and the effects by which faults count.

Start reading at `nemesis` (a schedule, played).
"""
