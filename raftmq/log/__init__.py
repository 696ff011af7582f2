"""The segmented commit log: records, segments, recovery, retention, and the indexes derived from it.

Start reading at `record` (what one entry looks like), then `segment` (a file of them), then
`store` (the log of one partition group).
"""
