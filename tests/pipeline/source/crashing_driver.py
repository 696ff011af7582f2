"""A driver of a stream that may be killed anywhere: one file a micro-batch, written in place.

python crashing_driver.py TOPIC CHECKPOINT OUTPUT
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(topic: str, checkpoint: str, output: str) -> None:
    """Read the topic to where it ends now."""

    def keep(rows: "DataFrame", batch: int) -> None:
        found = sorted([row.queue, row.offset] for row in rows.select("queue", "offset").collect())
        written = Path(output) / f"{batch}.new"
        written.write_text(json.dumps(found))
        written.replace(Path(output) / f"{batch}.json")

    with pipeline.session("crashing", memory="1g") as spark:
        source = spark.readStream.format("raftmq").option("subscribe", topic).option("job", topic)
        source = source.option("startingOffsets", "latest").option("maxOffsetsPerTrigger", 20)
        writer = source.load().writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
