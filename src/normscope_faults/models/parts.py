"""Everything that the files of cases share (in transit)."""

from ..data import *
from ..networks import *
from ..training import *
