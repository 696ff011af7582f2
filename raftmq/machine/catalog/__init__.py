"""The catalog: the machine of the system group, in parts.

Start reading at `catalog` (nodes, partition groups, topics, and where each queue lives), then
`state` (what its commands change), `consumer_groups` (which there are, and their topics) and
`membership` (who reads which queue).
"""
