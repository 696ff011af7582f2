"""What must hold in the core simulator.

Start reading at `safety` (looked at after every event).
"""
