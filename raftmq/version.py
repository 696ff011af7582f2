"""The version of this software, below all that tells it to others: a node, a client, the CLI."""

VERSION = "0.1.0"
"""The version of the project in pyproject.toml."""
