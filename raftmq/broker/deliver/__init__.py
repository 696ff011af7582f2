"""Deliveries that need more than an offset, on the node that leads the partition group: popping,
filters, delays.

| module | what it does |
|---|---|
| `popping` | requests of consumers that pop become commands, and leases answers: start here |
| `hand_out` | leases become bytes |
| `consumers`, `credit` | the consumers that pop here; what the machine knows of one that asks |
| `in_flight`, `room_wait` | the bound on messages in flight, and the wait for room under it |
| `wide_topics` | requests of topics with many queues |
| `matching`, `feeds` | which messages a filter lets through, for fetches and for pops |
| `subscription_sync` | the catalog's filters become known to data groups |
| `delay_scheduler` | messages that are due are released |
| `group_deletion` | what data groups keep of a deleted consumer group goes |
"""
