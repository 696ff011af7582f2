"""What a node puts into the directory, and tells clients of it (`raftmq.directory`).

`service` runs this node's member and publishes its rows; `rates` measures what is sent to topics;
`leases` lets clients take leases through this node.
"""
