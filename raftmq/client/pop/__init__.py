"""The consumer that pops: messages of any queue under leases, and their settlement.

Start reading at `consumer`, then `prefetcher` (how much is asked for, and when), `session` (one
partition group) and `settlement_sender` (each ack reaches its leader once).
"""
