"""The administrative calls: topics, consumer groups, nodes, and the histories of messages.

Start reading at `admin`; each other module is one subject of its calls.
"""
