"""What the board has: the rows of papers, accepted trials, what came of training them again, claims, names.

`leaderboard` beside this file is in a clone a symbolic link to leaderboard/, in a wheel a copy of a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xmcbench import Results
from xmcbench_plugins.board import claims, curated, papers

if TYPE_CHECKING:
    from xmcbench.reporting.names import NamedMethod
    from xmcbench.reporting.paper_rows import PublishedRow
    from xmcbench.reporting.rows import Reproduced
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store

FOLDER = Path(__file__).parent / "leaderboard"
PUBLISHED = FOLDER / "published"
ACCEPTED = FOLDER / "measured"  # a store of submissions (`xmcbench submit`)
VERIFIED = FOLDER / "verified.yaml"  # what the maintainers trained again


class Board(Results):
    """The results of this repository."""

    name = "board"

    @property
    def store(self) -> Path:
        """The accepted submissions."""
        return ACCEPTED

    def rows(self) -> Sequence[PublishedRow]:
        """The rows that come with xmcbench."""
        return papers.read_rows(PUBLISHED)

    def read(self, file: Path) -> Sequence[PublishedRow]:
        """The rows of a file in the same form, or of a folder of such files."""
        return papers.read_rows(file)

    def claims(self) -> Sequence[claims.Claim]:
        """The claims that were looked at."""
        return claims.read_claims().claims

    def methods(self) -> Sequence[NamedMethod]:
        """The curated names."""
        return curated.methods()

    def reproduced(self, store: Store, records: Iterable[Record]) -> Mapping[str, Reproduced]:
        """What the maintainers' list says of accepted trials."""
        from xmcbench_plugins.board import verified

        return verified.states(VERIFIED, store, records)
