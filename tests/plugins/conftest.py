"""The engine's fixtures, see `tests/toy_fixtures.py`, and those of LMTX."""

from toy_fixtures import data, one_thread, small_encoder

from .lmtx_trials import trials

__all__ = ["data", "one_thread", "small_encoder", "trials"]
