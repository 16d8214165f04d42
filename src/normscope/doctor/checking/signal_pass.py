from ..facts.activations import ACTIVATIONS as ACTIVATIONS
from ..facts.forward_backward import run_forward_backward as watch_signal  # noqa: F401
from ..facts.forward_backward import weigh_divergence as weigh_divergence
