"""The nodes of a cluster: how they are admitted and linked, and which groups they carry.

Start reading at `admission` (may a blank folder take part?), then `links` and `peers` (how nodes
reach each other), then `placement` and `reconfiguration` (who carries which partition group).
"""
