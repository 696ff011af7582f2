"""Disks that can fail, under real processes: a FUSE file system in Python.

Start reading at `disks`, then `overlay`.
"""
