from ..facts.steps import SHORTEST as SHORTEST
from ..facts.steps import Optimizers as Optimizers
from ..facts.steps import StepFacts as StepFacts
