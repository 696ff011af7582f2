"""The producer: messages become batches, and each batch reaches its queue once, in order.

Start reading at `producer`, then `queue_sender` (the batches of one queue, in order through every
fault), `turns` (the queue of a message without a key) and `producer_batch` (what a call waits for,
what a frame carries).
"""
