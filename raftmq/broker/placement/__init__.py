"""Which nodes shall carry and lead each partition group: pure functions from what is known to new
members, and the balancer, which applies them. `raftmq.broker.cluster` brings the groups there.

Start reading at `members` (nodes come and go), then `balance` (plans that even out the load), then
`balancer` (what the cluster does by itself).
"""
