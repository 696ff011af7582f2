"""Checkers of what servers held and did: Raft's, the disk's and the popping groups' invariants.

Start reading at `invariants` (the list), then `evidence` (their input).
"""
