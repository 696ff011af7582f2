"""Checkers of a log that is written, and read by offset.

Start reading at `anomalies`, then `order`.
"""
