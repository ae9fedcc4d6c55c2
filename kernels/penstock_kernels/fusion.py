"""Enables fused multiply-add in every version of Triton.

This was always the default, and the kernels were measured with it. Triton 3.9 warns, at the first
compilation, that its default will change. An explicit setting of the user stays.
"""

import os

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
