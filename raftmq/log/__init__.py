"""The segmented commit log: records, segments, recovery, retention, and indexes derived from them.

Start reading at `record` (what one entry looks like), then `segment` (a file of them), then
`store` (the log of one partition group). Nothing is exported here: import the module you need, so
that code that uses records loads no file store.

| module | what it is | used on |
|---|---|---|
| `record` | one Raft entry as bytes | everywhere |
| `segment` | layouts of segment files, and the small values shared below | everywhere |
| `files` | the disk as the log sees it | disk thread |
| `store`, `recovery` | the log of one group | disk thread; `read` on any thread |
| `snapshot` | machine states between segments | disk thread |
| `index_file`, `builder` | the derived index of one segment | built on the loop, sealed off it |
| `index` | where messages are, over all segments | event loop |
| `cache` | recent records and all terms, in memory | event loop |
| `inspect` | a folder read without touching it | tools |
| `faults` | what can go wrong, as types | everywhere |
"""
