from normscope_faults.data import *  # noqa: F403
from normscope_faults.networks import *  # noqa: F403
from normscope_faults.training import *  # noqa: F403
