"""raftmq by itself: costs that have no counterpart in the peers or the floor.

| program | measures |
|---|---|
| `popping` | leases, repeated messages, and the time from send to hand-out |
| `subscriptions` | thousands of filtered groups on one node |
| `fetch_sessions` | a message for a consumer of many queues |
| `embedded` | the queue inside one process |
| `collector` | pauses of Python's garbage collector in a node with much state |
| `idle` | a cluster at rest, by partition groups |
| `security` | the cost of TLS and of users |
| `machine_nodes` | one machine with several nodes against one |
| `half_open` | a client's rate among half-open connections |
| `fairness` | one user's work beside another at full speed |

Each is a command of its own, such as `python -m bench.alone.popping`. Start reading at `idle.py`,
the shortest.
"""
