from ..facts.objective import differentiated_outputs as differentiated_outputs
from ..facts.objective import take_loss as take_loss
