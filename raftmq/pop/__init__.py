"""POP consumption: leases with deadlines, retries in place, dead letters, and order by key.

Start reading at `policy` (what a consumer group is), then `groups` (one consumer group), `backlog`
(what it has not settled of one queue; `serial` and `keyed` keep an order) and `leases` (what
consumers have in hand). All are pure, and a part of the machine of a data group: see
`raftmq.machine.pop_groups`.
"""
