"""How a client reaches the node that can answer: addresses, connections, the routing table.

Start reading at `router` (who leads what), then `connection` (one node) and `calls` (one request
through many attempts).
"""
