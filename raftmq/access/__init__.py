"""Who may do what: the rules of access, and the verdict on an act.

`rules` has no I/O and knows neither nodes nor messages. The catalog keeps the rules
(`raftmq.machine.catalog.access`), and each node judges by its copy of them
(`raftmq.broker.access`).
"""
