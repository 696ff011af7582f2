"""Access without I/O: rules and verdicts (`rules`), passwords (`scram`), tokens (`tokens`).

The catalog keeps users and rules (`raftmq.machine.catalog.access`), and each node judges by its
copy of them (`raftmq.broker.access`).
"""
