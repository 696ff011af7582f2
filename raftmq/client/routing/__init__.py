"""How a client reaches the right node: addresses, connections, the routing table.

Start reading at `requests` (a reply of a leader, or all its pages), then `router` (the leader of
each partition group), `connection` (one node), `calls` (one request through many attempts) and
`weights` (how quickly each node stores).
"""
