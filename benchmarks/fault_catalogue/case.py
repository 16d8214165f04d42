from normscope_faults.remedies import REMEDIES, any_of as _advice
