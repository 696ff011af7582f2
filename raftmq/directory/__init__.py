"""The directory: soft state of a cluster that each node can read and write, on pysyncobj.

Who is connected where, the rates of the last minutes, and leases for jobs that one process does at
a time. The nodes are equals: each one puts its own rows in, and all of them see all rows.

    rows of node 1 ──> ┌───────────────────────────┐ ──> rows of all nodes, at each node
    rows of node 2 ──> │ a ReplDict, in memory only│
    rows of node 3 ──> └───────────────────────────┘

No guarantee of raftmq rests on it. It loses its state whenever a member restarts, and the members
put their rows in again within seconds (`epoch`).

Start reading at `directory`. `replica` holds pysyncobj's objects, and `post` carries their messages
over the nodes' own links. Why pysyncobj here and not for messages: `docs/decisions/`.

Sources: ZZMQ's registry, whose members are equals; Eureka for rows that their owner renews.
"""
