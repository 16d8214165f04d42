"""Check proofs that `bracket.save(path)` wrote, without Normscope: `python tools/verify FILE...`."""

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # many small matrices: threads would only wait for each other

try:
    from normscope_verify.claims import main
except ModuleNotFoundError as error:
    sys.exit(f"the checker needs {error.name}: pip install numpy python-flint")

if __name__ == "__main__":
    sys.exit(main())
