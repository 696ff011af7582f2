"""Other systems, driven through their own clients in Python; RocketMQ's is a Java program, as no
Python client speaks its protocol. One file for each system.

Run these files as modules of this package (`python -m bench.cell nats ...`), never as scripts: a
script's folder comes first on the import path, where `nats.py` would hide the package `nats`.
"""
