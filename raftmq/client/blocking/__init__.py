"""The client for plain code: the same names, without await.

Start reading at `client`, then `loop` (the event loop in a thread of its own).
"""
