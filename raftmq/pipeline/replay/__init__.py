"""The replay of messages from an archive into a topic.

    <archive>/_replays/orders-1f3a9c2e/plan.json      what is replayed, fixed at the first start
    <archive>/_replays/orders-1f3a9c2e/checkpoint/    Spark's
    <archive>/_replays/orders-1f3a9c2e/done.json      when all of it is stored

Start reading at `plan` (the messages of a replay), then `timeline` (which message is due), `source`
(the archive as a stream), `job` (the run).
"""
