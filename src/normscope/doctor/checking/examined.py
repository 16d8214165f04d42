"""Old names."""

from ..facts.data import DataSeen as DataSeen
from ..facts.examined import Examined as Examined
from ..facts.examined import ExaminedRow as ExaminedRow
from ..facts.examined import layer_seen as layer_seen
from ..facts.layers_over_data import NormalizerOverData as NormalizerOverData
from ..facts.layers_over_data import UnitsOverData as UnitsOverData
from ..facts.layers_over_data import Variance as Variance
from ..facts.layers_over_data import WeightOverData as WeightOverData
from ..facts.layers_over_data import RELATIVE_CHANNEL as RELATIVE_CHANNEL
