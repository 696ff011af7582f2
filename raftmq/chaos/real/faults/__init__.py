"""The faults of real processes: the nemesis, own faults, and the work behind some verbs.

Start reading at `nemesis` (a schedule, played).
"""
