"""One process of a simulated node: the broker's own partition group, and simulated work around it.

Start reading at `replica`, then `watched` (where the checks look) and `writing` (the disk thread).
`process` is the state that the checks see, `machine` what the records are applied to.
"""
