from ..facts.batch import WidestColumn as WidestColumn
from ..facts.calls import DropoutCall as DropoutCall
from ..facts.detached import CutValue as CutValue
from ..facts.detached import LostParameters as LostParameters
from ..facts.forward_backward import NO_GRADIENT as NO_GRADIENT
from ..facts.input_use import MOST_SILENT as MOST_SILENT
from ..facts.layers import (
    BFLOAT16_LARGEST as BFLOAT16_LARGEST,
)
from ..facts.layers import (
    FLOAT16_LARGEST as FLOAT16_LARGEST,
)
from ..facts.layers import (
    FLOAT16_NORMAL as FLOAT16_NORMAL,
)
from ..facts.layers import (
    GATE as GATE,
)
from ..facts.layers import (
    INPUT as INPUT,
)
from ..facts.layers import (
    LayerRow as SignalRow,  # noqa: F401
)
from ..facts.layers import name_input as name_input
from ..facts.objective import RANDOM as RANDOM
from ..facts.parameters import ParameterRow as ParameterRow
from ..facts.pass_facts import PassFacts as Signal  # noqa: F401
from ..facts.pass_facts import find_discriminator_layers as find_discriminator_layers
from ..facts.pass_facts import is_generator_step as is_generator_step
