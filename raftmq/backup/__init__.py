"""Backups: copies of all logs of a running cluster, and new clusters made of them.

    orders-backup/
        manifest.json           the finished backups: per group an index, its record, a digest
        groups/00000/           the log of the system group: a snapshot, and the records after it
        groups/00001/           the log of a data group
        ...

A folder holds one backup and its increments: they share the records, and each ends at an index of
its own. Start reading at `manifest`, then `copying`, `replay` (what verifies a backup) and
`restoring`. The command is `raftmq.cli.backup`.

Sources: decision 0045.
"""
