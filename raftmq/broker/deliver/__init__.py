"""Messages on their way to consumers that pop, on the node that leads their partition group.

Start reading at `popping` (requests become commands), then `hand_out` (leases become bytes).
`matching` and `feeds` find out which messages a filter lets through, and `delay_scheduler` releases
those that are due.
"""
