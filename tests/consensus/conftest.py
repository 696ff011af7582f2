"""Options of the consensus tests."""

from contextlib import suppress

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --rewrite` writes what golden scripts print into them; review the difference."""
    with suppress(ValueError):  # another folder has added it already
        parser.addoption("--rewrite", action="store_true", help="rewrite golden scripts")
