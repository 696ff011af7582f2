"""The order of a sender over several queues: numbers that the sender stamps, and a receiver that
restores the order.

A queue keeps the order of one producer; messages on several queues have no order. A `Sequencer`
numbers the messages of a *stream*, and a `Resequencer` hands them on by these numbers.

Start reading at `sequencer`, then `held_back` (the core, without waiting) and `resequencer`.
"""
