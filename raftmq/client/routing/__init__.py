"""How a client reaches the right node: addresses, connections, the routing table.

Start reading at `router` (the leader of each partition group), then `connection` (one node) and
`calls` (one request through many attempts).
"""
