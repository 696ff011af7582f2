"""Dynamic settings on one node.

Start reading at `known`, which lists them. `following` obeys them, and `requests` tells clients.
"""
