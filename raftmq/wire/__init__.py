"""Frames and typed messages: what travels between clients and nodes, and between nodes.

Start reading at `messages` (requests and answers), then `frame` (their form in bytes).
"""
