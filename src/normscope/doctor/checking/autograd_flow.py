from ..facts.autograd_graph import ELEMENTWISE as ELEMENTWISE
from ..facts.autograd_graph import RANGES as RANGES
from ..facts.autograd_graph import REARRANGING as REARRANGING
from ..facts.autograd_graph import Edge as Edge
from ..facts.autograd_graph import find_gates as find_gates
from ..facts.autograd_graph import operator_name as operator_name
