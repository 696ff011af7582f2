"""What plants those mutants of `raftmq.chaos.mutants` whose patches need the event loop."""
