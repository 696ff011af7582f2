"""The job `trace`: each message's life in each consumer group that pops, from the log's entries.

    raftmq pipeline trace run lives              events into Parquet, timelines of the hours touched
    raftmq pipeline trace slowest lives          the slowest messages, with their story
    raftmq pipeline trace quantiles lives        how long it takes, in quantiles
    raftmq pipeline trace show lives orders 0 17 the story of one message

Start reading at `timelines` (events become timelines; pure), then `folder` (what is durable),
`job`, `event_ingest` and `hour_build` (what Spark does), and `query`.

| in the folder | holds |
|---|---|
| `trace.json` | how far each log is read, the hours, and which files count: see `folder.State` |
| `events/dt=2026-11-22/hour=10/r00012-p3.parquet` | rows of the source's table `events`, by the |
| | hour of the record; of run 12, written by its Spark partition 3 |
| `timelines/dt=…/hour=…/r00012-p0.parquet` | timelines of messages *stored* in that hour |
| `quantiles/dt=…/hour=…/r00012-p0.parquet` | a row a minute, topic and group, with sketches |

A timeline is about a run of messages that had the same life:

| column | meaning |
|---|---|
| topic, topic_id, queue | the queue |
| offset, count | the run |
| group, attachment | the consumer group, and the number of its attachment to the topic |
| stored | when they were placed in the queue |
| first_handed, last_handed | when a consumer got them, the first and the last time; null: never |
| ended | when it was over; null: it is not |
| outcome | `acked`, `dead`, `passed`, `lost`, `purged`, `skipped`; or where they are now: |
| | `leased`, `waiting`, `ready`, `fresh` |
| attempts, handed, failed | attempts that count; times handed out; times nacked or expired |
| consumer | who had them last |
| wait_ms | from stored to first handed out |
| service_ms | from last handed out to acked |
| total_ms | from stored to ended |

A row of quantiles is about the messages *stored* in one minute: minute, topic, group, messages,
and KLL sketches of `wait_ms` (`waits`) and `service_ms` (`services`), which Spark merges
(`kll_merge_agg_bigint`) to any longer time.

A kill leaves files of a run that is not in `trace.json`. No reader reads these files, and the next
run removes them and reads the same records again. So each event is there exactly once.

Invariants:
- `trace.json` is durable, and so were all files that it names before it was written.
- An hour is built whole from all events about its messages; building it again changes nothing.

Left out: groups that pull by offset, which leave no trace in the log; when the producer sent, which
is in the messages (`created`): join them by topic, queue and offset.
"""
