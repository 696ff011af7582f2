"""Clients of the simulated world: each module starts one kind of `raftmq.chaos.workloads`."""
