"""Fixtures for decisions: each backend that is installed."""

import pytest
from random_networks import require_backend


@pytest.fixture(scope="session", params=["jax", "fast"])
def backend(request):
    return require_backend(request.param)
