"""The consumer that pops: messages of any queue under leases, and their settlement.

Start reading at `consumer`, then `prefetcher` (what is asked for, and when), `session` (one
partition group) and `settlement_sender` (each ack told to its leader once).
"""
