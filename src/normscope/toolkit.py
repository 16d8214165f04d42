"""What packages on top of Normscope make their own measurements and results of.

Errors, results as JSON, files, budgets, a loss as a function of the weights, directions of the weights that have no
effect, confidence limits. The lab is made of these (`src/normscope_lab`).
"""

from .auditing.audit_result import Row
from .bounds.data.quantile import rank_above, rank_below
from .bounds.geometry.directions import Directions, find_directions, verify_directions
from .calls.batches import LossFunction
from .choosing.choice import half_width
from .core.budget import Budget, Progress
from .core.codec import JsonForm, Part, Saved, decode, from_plain, open_json
from .core.codec import encode as to_plain
from .core.errors import InputError, check_numbers, check_positive, describe_error
from .core.files import write_text
from .core.log10 import log10, log10_sum
from .core.provenance import provenance
from .core.threads import ignore_warnings
from .core.untouched import outside_inference_mode, unwrapped
from .doctor.monitor.record import Record
from .doctor.monitor.watching import Watch
from .products.objective import Objective
from .report.document import FigureResult

__all__ = [
    "Budget",
    "Directions",
    "FigureResult",
    "InputError",
    "JsonForm",
    "LossFunction",
    "Objective",
    "Part",
    "Progress",
    "Record",
    "Row",
    "Saved",
    "Watch",
    "check_numbers",
    "check_positive",
    "decode",
    "describe_error",
    "find_directions",
    "from_plain",
    "half_width",
    "ignore_warnings",
    "log10",
    "log10_sum",
    "open_json",
    "outside_inference_mode",
    "provenance",
    "rank_above",
    "rank_below",
    "to_plain",
    "unwrapped",
    "verify_directions",
    "write_text",
]
