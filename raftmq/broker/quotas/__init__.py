"""Quotas of users and topics on one node.

Start reading at `quotas`; `buckets` has the arithmetic.
"""
