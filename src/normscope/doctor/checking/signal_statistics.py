from ..facts.batch import fetch_columns as fetch_columns
from ..facts.batch import widest_column as widest_column
from ..facts.layers import MAX_DOUBLE_ENTRIES as MAX_DOUBLE_ENTRIES
from ..facts.layers import statistics_of as statistics_of
from ..facts.parameters import parameter_statistics as _parameter_statistics  # noqa: F401
