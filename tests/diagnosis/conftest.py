"""What every test of diagnosis shares."""

import pytest


@pytest.fixture(autouse=True)
def _same_numbers(seeded: None) -> None:
    """Each test draws the same numbers, whatever ran before it."""
