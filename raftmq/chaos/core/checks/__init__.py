"""The checks of the core simulator.

Start reading at `safety` (checked after every event).
"""
