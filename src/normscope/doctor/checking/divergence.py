from ..facts.divergence import Divergence as Divergence
