"""Numbers of queues and of the system group.

A queue's number in its cluster is `topic id << QUEUE_BITS | queue of the topic`.

>>> 7 << QUEUE_BITS | 3, (7 << QUEUE_BITS | 3) & QUEUE_MASK
(458755, 3)
"""

SYSTEM_GROUP = 0
"""The partition group that carries the catalog."""
QUEUE_BITS = 16
"""The lower bits of a queue's number: the queue's place within its topic."""
QUEUE_MASK = (1 << QUEUE_BITS) - 1
"""Takes the queue's place within its topic out of the queue's number."""
