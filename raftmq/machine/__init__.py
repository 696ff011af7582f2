"""The replicated machine: what every replica of a partition group computes from the same log.

Start reading at `machine` (a data group: queues, producers, committed offsets), then `pop_groups`
(its consumer groups that pop, each a `raftmq.pop`), then `catalog` (the system group: nodes,
partition groups, topics). All are pure: the same records give the same state, the same results and
the same digest on every replica, whatever the time of day.
"""
