"""A driver to be killed: a stream of JSON files into a topic.

python stream_driver.py FOLDER TOPIC CHECKPOINT URL
"""

import sys

from raftmq import pipeline


def main() -> None:
    folder, topic, checkpoint, url = sys.argv[1:]
    with pipeline.session("killed", memory="1g") as spark:
        files = spark.readStream.schema("body string, key string").option("maxFilesPerTrigger", 1)
        # A shuffle, so that rows come in another order when a batch is run again.
        rows = files.json(folder).repartition(3)
        writer = rows.writeStream.format("raftmq").options(topic=topic, url=url)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()


if __name__ == "__main__":
    main()
