"""Old names."""

from ..facts.data_pass import WRONG_BATCH as WRONG_BATCH
from ..facts.data_pass import run_over_data as watch_data  # noqa: F401
