"""The node's part in the directory (`raftmq.directory`): its rows, and requests about all rows.

`service` runs this node's member and publishes its rows; `rates` measures what is sent to topics;
`leases` lets clients take leases through this node.
"""
