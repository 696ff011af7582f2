"""Breaking things on purpose, and judging what clients saw.

Start reading at `faults` (the language of faults), then `sim` (whole brokers in a simulated world),
`core` (consensus alone) and `real` (processes). `raftmq.checkers` judges the histories. Nothing is
imported here: pytest loads `plugin` wherever raftmq is installed, and shall not wait for numpy.
"""
