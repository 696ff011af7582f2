"""The administrative calls: topics, consumer groups, nodes, and what became of messages.

Start reading at `admin`; each other module is one subject of its calls.
"""
