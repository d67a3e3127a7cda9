"""The one place that imports pynq: slow (about a second) and noisy, so only modules that need it come here."""

from __future__ import annotations

import warnings

__all__ = ["pynq", "xclbin_parser", "xclbin_structures"]

with warnings.catch_warnings():
    # pynq warns that this machine is no Zynq, and its tools still use pkg_resources; neither matters here.
    warnings.filterwarnings("ignore", message="Pynq does not support the CPU Architecture")
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    import pynq
    import pynq.lib
    from pynq._3rdparty import xclbin as xclbin_structures
    from pynq.pl_server import xclbin_parser
