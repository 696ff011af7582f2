"""The demo of the pipeline: `python -m demo.pipeline`, or `make demo-pipeline`.

Three nodes, the flights, and two jobs on Spark: `live` counts each day's departures by carrier, and
`archive` writes everything to Parquet. A leader is killed while they read, then both of Spark's
drivers. In the end the windows equal those that plain Python computes from the data, and the
archive holds each message once.

Start reading at `story`, then `proof`.
"""
