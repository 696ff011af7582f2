"""The pull consumer: it reads queues by offset, and remembers how far.

Start reading at `consumer`, then `read_ahead` and `assignment` (queues that come and
go).
"""
