"""The trio shell around the cores: disk, network, clock, the server loop, long polling.

Start reading at `world` (what lies outside a node), then `node` (one process), `service` (a part of
it), `replica.group` (one replica of a partition group), and `serve.requests` (what clients ask).

| room | holds |
|---|---|
| `replica` | one replica of a partition group, from its folder to its removal |
| `cluster` | the nodes: their identities, their links, and the groups that each carries |
| `serve` | connections, and the answers to requests |
| `deliver` | messages on their way to consumers that pop, filters and delays included |
"""
