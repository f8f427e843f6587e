"""The engine's fixtures; see `tests/toy_fixtures.py`."""

from toy_fixtures import data, one_thread, small_encoder

__all__ = ["data", "one_thread", "small_encoder"]
