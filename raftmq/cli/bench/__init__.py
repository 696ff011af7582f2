"""`raftmq bench`; start reading at `commands`."""
