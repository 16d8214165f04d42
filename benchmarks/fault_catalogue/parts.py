from normscope_faults.data import *
from normscope_faults.networks import *
from normscope_faults.training import *
