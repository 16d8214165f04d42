"""Jobs that take long: done in processes or on a cluster (`engines.py`), and kept in a folder (`ledger.py`)."""

from .engines import SharedWork, runner
from .ledger import Kept, Ledger, hashed

__all__ = ["Kept", "Ledger", "SharedWork", "hashed", "runner"]
