"""One replica of a partition group: its consensus, its log, its machine, and their upkeep.

Start reading at `group` (the pump between them), then `disk` (group commit) and `opener` (from a
folder to a `Group`). `replicas` says which replicas a node carries, `removal` when one goes.
"""
