from normscope_faults.remedies import REMEDIES as REMEDIES
from normscope_faults.remedies import any_of as _advice  # noqa: F401
