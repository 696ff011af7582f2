"""`raftmq group`; start reading at `commands`."""
