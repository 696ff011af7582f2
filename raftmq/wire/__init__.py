"""Frames and typed messages: what travels between clients and nodes, and between nodes.

Start reading at `messages` (what can be said), then `frame` (how it is cut into bytes).
"""
