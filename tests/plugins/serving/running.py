"""A server that runs in a thread of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from xmcbench_plugins.serving.server import Rank, listen, server


@contextmanager
def served(rank: Rank, k: int = 3) -> Iterator[int]:
    """The port of a server that asks `rank`."""
    with listen(0) as taken:
        running = server(rank, k, {"is_trained": True})
        thread = threading.Thread(target=running.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            yield int(taken.getsockname()[1])
        finally:
            running.should_exit = True
            thread.join()
