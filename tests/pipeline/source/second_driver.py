"""A second driver on a checkpoint: it follows a topic until it is ended, one file a micro-batch.

python second_driver.py TOPIC CHECKPOINT OUTPUT
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def keep(rows: "DataFrame", batch: int, output: Path) -> None:
    """Write which messages these are, under the number of the micro-batch."""
    found = sorted([row.queue, row.offset] for row in rows.select("queue", "offset").collect())
    written = output / f"{batch}.new"
    written.write_text(json.dumps(found))
    written.replace(output / f"{batch}.json")


def main(topic: str, checkpoint: str, output: str) -> None:
    """Follow the topic."""
    # As the tests' own Spark: Java's first compiler alone starts faster.
    options = {"spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1"}
    with pipeline.session("second", memory="1g", settings=options) as spark:
        rows = spark.readStream.format("raftmq").option("subscribe", topic).load()
        writer = rows.writeStream.foreachBatch(lambda rows, n: keep(rows, n, Path(output)))
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
