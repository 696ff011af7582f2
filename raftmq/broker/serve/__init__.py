"""Connections and requests: what clients and operators ask of a node, and the answers.

Start reading at `connection` (frames in, frames out), then `requests` (batches, offsets, the
catalog, this node) and `fetches` (reading queues by offset).
"""
