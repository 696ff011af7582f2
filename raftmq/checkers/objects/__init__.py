"""Checkers of single objects: registers, sets, queues, locks, claims, and topics that come and go.

Start reading at `linearizability`, then `search` and `zones`.
"""
