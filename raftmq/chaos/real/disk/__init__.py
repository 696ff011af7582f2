"""Disks that can fail, under real processes: a file system of our own.

Start reading at `disks`, then `overlay`.
"""
