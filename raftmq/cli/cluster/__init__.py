"""`raftmq cluster`; start reading at `commands`."""
