"""Products that are added are added in one rounding, in every version of Triton.

So it always was, and the kernels were measured so. Triton 3.9 warns, at the first compilation, that
its default is about to change. An explicit choice is kept.
"""

import os

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
