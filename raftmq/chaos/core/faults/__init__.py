"""The faults of the core simulator: the nemesis, own faults, and the effects by which faults count.

Start reading at `nemesis` (a schedule, played), then `atlas` (what may be destroyed).
"""
