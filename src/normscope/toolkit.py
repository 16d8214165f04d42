"""What packages on top of Normscope make their own measurements and results of.

Errors, results as JSON, files, jobs that take long, budgets, data as users give them, graphs of models with norms and
bounds, a loss as a function of the weights, directions of the weights that have no effect, confidence limits. The lab
is made of these (`src/normscope_lab`).
"""

from .auditing.audit_result import Row
from .bounds.balls.ball import Balls
from .bounds.bounds_by_method import printed, printed_constant, upper_sides
from .bounds.data.quantile import rank_above, rank_below
from .bounds.geometry.directions import Directions, find_directions, verify_directions
from .bounds.graph.capturing import Traces, capture_weights
from .bounds.graph.ir import Argument, Constant, Node, Ref, Shape
from .bounds.graph.traits import traits_of
from .bounds.operators.effects import Linear
from .bounds.operators.registry import family_of, is_homogeneous, is_normalizer, is_weight
from .bounds.radius.logits import Logits
from .bounds.traced_model import TracedModel, trace
from .bounds.traced_network import BoundSettings, TracedNetwork
from .calls.batches import Batch, LossFunction, placed_batches
from .calls.call import Call, quantized, sample_shapes
from .calls.call import run as run_model
from .calls.call import select as select_output
from .calls.data_reader import Batches
from .calls.stand_ins import accepts_graph
from .choosing.choice import half_width
from .choosing.engines import runner
from .choosing.ledger import Ledger, hashed
from .core.budget import Budget, Progress
from .core.codec import JsonForm, Part, Saved, decode, from_plain, open_json
from .core.codec import encode as to_plain
from .core.errors import InputError, check_counts, check_numbers, check_positive, describe_error
from .core.files import write_text
from .core.log10 import log10, log10_sum, power10
from .core.provenance import provenance
from .core.shown import data_frame
from .core.threads import ignore_warnings
from .core.untouched import mode_of, outside_inference_mode, untouched, unwrapped, with_tensors
from .doctor.monitor.record import Record
from .doctor.monitor.watching import Watch
from .products.objective import Objective, refuse_lost_gradients
from .report.document import FigureResult, ReadColumn, figures_form, tabulate
from .report.document import read_from as read_attribute
from .theory.losses import margins as logit_margins
from .theory.losses import named as named_loss

__all__ = [
    "Argument",
    "Balls",
    "Batch",
    "Batches",
    "BoundSettings",
    "Budget",
    "Call",
    "Constant",
    "Directions",
    "FigureResult",
    "InputError",
    "JsonForm",
    "Ledger",
    "Linear",
    "Logits",
    "LossFunction",
    "Node",
    "Objective",
    "Part",
    "Progress",
    "ReadColumn",
    "Record",
    "Ref",
    "Row",
    "Saved",
    "Shape",
    "TracedModel",
    "TracedNetwork",
    "Traces",
    "Watch",
    "accepts_graph",
    "capture_weights",
    "check_counts",
    "check_numbers",
    "check_positive",
    "data_frame",
    "decode",
    "describe_error",
    "family_of",
    "figures_form",
    "find_directions",
    "from_plain",
    "half_width",
    "hashed",
    "ignore_warnings",
    "is_homogeneous",
    "is_normalizer",
    "is_weight",
    "log10",
    "log10_sum",
    "logit_margins",
    "mode_of",
    "named_loss",
    "open_json",
    "outside_inference_mode",
    "placed_batches",
    "power10",
    "printed",
    "printed_constant",
    "provenance",
    "quantized",
    "rank_above",
    "rank_below",
    "read_attribute",
    "refuse_lost_gradients",
    "run_model",
    "runner",
    "sample_shapes",
    "select_output",
    "tabulate",
    "to_plain",
    "trace",
    "traits_of",
    "untouched",
    "unwrapped",
    "upper_sides",
    "verify_directions",
    "with_tensors",
    "write_text",
]
