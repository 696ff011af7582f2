"""The faults of the core simulator: how each fault is made, and by which effect it counts.

Start reading at `nemesis` (a schedule, played), then `atlas` (what may be destroyed).
"""
