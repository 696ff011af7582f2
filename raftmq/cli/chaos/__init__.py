"""`raftmq chaos`; start reading at `commands`."""
