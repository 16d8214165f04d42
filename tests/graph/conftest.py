"""Every test of capture draws the same numbers."""

import pytest


@pytest.fixture(autouse=True)
def _same_numbers(seeded: None) -> None:
    """Draw from the seed of `seeded`."""
