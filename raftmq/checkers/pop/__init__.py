"""Checkers of consumer groups that pop, and of messages that are withheld for a while.

Start reading at `ledger` and `messages`; each other module judges one set of rules.
"""
