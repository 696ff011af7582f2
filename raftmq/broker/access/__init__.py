"""Access to a node: who a client is, and what it may do.

A connection has a *user* from its certificate or its login (`gate`). Each request needs certain
acts to be allowed (`needs`), which the rules in the catalog decide (`raftmq.access.rules`).
"""
