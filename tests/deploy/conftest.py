"""Fixtures for serving: a small policy with the backend that shares calls, and its server."""

import sys
from pathlib import Path

import pytest

import gemrl

# Policies of random networks are made there.
sys.path.append(str(Path(__file__).parent.parent / "decide"))

from random_networks import require_backend


@pytest.fixture(scope="session")
def fast_policy(run_folder):
    require_backend("fast")
    return gemrl.load(run_folder, backend="fast")
