"""The asynchronous tests here run on trio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "trio"
