"""The faults of the core simulator: how each one is made, and what must be seen of it.

Start reading at `nemesis` (a schedule, played), then `atlas` (what may be destroyed).
"""
