"""What a stored file may hold, whoever wrote it: all limits stand here, and readers check them before they go on.

`files.py` reads JSON (audits and all other results, settings) and logs of runs and jobs, `npz.py` archives (domains,
data, headers of weights). The checker of proofs, which must not need this package, has the limits of archives once more
(`tools/verify/normscope_verify/reading.py`). What a page shows of a file within the limits is in `report/limits.py`.
"""

from __future__ import annotations

MAX_JSON_BYTES = 64 << 20
"""A file of one result. An audit takes about 1.5 kB a layer, a radius 0.3 kB a sample."""
MAX_JSON_VALUES = 2_000_000
"""Values of one result or one line: as objects of Python each takes about 100 bytes."""
MAX_JSON_DEPTH = 64
"""Objects and lists inside each other; a comparison of audits has about 10."""
MAX_TEXT_LETTERS = 100_000
"""Letters of one name or sentence."""

MAX_LINE_BYTES = 16 << 20
"""A line of a log holds the figures of one step; for 10,000 layers with all figures it takes 3 MB."""
MAX_LOG_BYTES = 1 << 30
MAX_LOG_LINES = 2_000_000

MAX_UNPACKED_BYTES = 1 << 30
"""All arrays of an archive together; its reader may allow more."""
SMALL_BYTES = 64 << 20
"""Up to this size arrays may be packed as tightly as they can be."""
MAX_RATIO = 100
"""Arrays above `SMALL_BYTES` may unpack to this many times the size of the file. Weights unpack to about twice."""
MAX_MEMBERS = 10_000
MAX_READ_BYTES = 1 << 20
"""Bytes that are read at a time. zipfile reads the directory of an archive at once: this is also its largest size."""
MAX_ARRAY_HEADER_BYTES = 10_000
MAX_DIMENSIONS = 32
MAX_ARCHIVE_JSON_BYTES = 16 << 20
"""JSON in an array of bytes."""
MAX_TABLE_BYTES = 16 << 20
"""The directory of a file of weights: that of 100,000 tensors takes 10 MB."""
