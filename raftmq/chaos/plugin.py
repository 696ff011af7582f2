"""The pytest plugin: chaos tests of raftmq, of services on top of it, and of anything else."""
