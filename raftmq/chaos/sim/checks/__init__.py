"""Checks of a simulated cluster, while it runs and when it has come to rest.

Start reading at `watch` (every node, all the time), then `evidence` (what the disks hold).
"""
