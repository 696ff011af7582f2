"""The trio shell around the cores: disk, network, clock, the server loop, long polling.

Start reading at `world` (what lies outside a node), then `node` (one process), `group` (one replica
of a partition group in it), and `requests` (what a client may ask).
"""
