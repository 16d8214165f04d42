"""Old names."""

from ..facts.data import WRONG_BATCH as WRONG_BATCH
from ..facts.data import run_over_data as watch_data  # noqa: F401
