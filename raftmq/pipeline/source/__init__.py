"""The source: topics as rows of Spark, in batches and streams, without a Python object a message.

    spark.read.format("raftmq").option("subscribe", "orders").load()
    spark.readStream.format("raftmq").option("subscribe", "orders").option("job", "daily").load()

Start reading at `options` (what can be said), then `offsets` (places and ranges, pure), `stream`
and `batch` (what Spark's driver asks), and `range_reader` (what its workers do). `cluster` asks the
cluster, `pushdown` is about filters, and `gaps` about what retention took away.

Invariants:
- A range (topic, queue, [start, end)) below a queue's end holds the same messages for ever, so a
  micro-batch that is repeated reads the same rows.
- No message is passed over silently: what is missing is an error, or a row of the table of gaps.
- A reader does not connect when it is made: Spark makes several, and uses some of them.
- Spark finds the source without loading a client: Spark asks in several processes that end at once.

`pinning.pin` finds where topics end now, for a caller that reads a batch more than once.
"""
