"""These tests drive real processes; they run on trio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "trio"
