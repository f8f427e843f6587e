"""Which method, at which budget: the documents and figures that speak of accepted records, made again by one command.

Documents are made of the templates in `benchmarks/templates/` (`documents.py` says what may stand there). Where a
sentence is no longer what the records say, or a name is wrong, that is a line each and nothing is written.

    python benchmarks/findings.py                  # from leaderboard/measured
    python benchmarks/findings.py --store DIR --show results.md.jinja    # print one document, from a store of trials
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from claims_document import written_claims
from documents import SHOWN, TEMPLATES, Statements, flowed
from findings_figures import DRAWN
from hand_written import typed
from studies import STUDIES, Boards

from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench_plugins.board.results import ACCEPTED

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
END = "<!-- end -->"
ON_THE_PAGE = 2  # points of the README that the page shows too: its first rows stay on the first screen


@dataclass(frozen=True)
class Document:
    """A template, and the file that holds what it makes: all of it, or the part after a mark."""

    template: str
    path: str
    mark: str = ""

    def placed(self, text: str) -> str:
        """The whole file with `text` in its place. Raises `XMCBenchError` where the mark or its end is missing."""
        if not self.mark:
            return text
        before, start, rest = (ROOT / self.path).read_text(encoding="utf-8").partition(self.mark)
        _, end, after = rest.partition(END)
        if not end:
            raise XMCBenchError(f"{self.path}: expected {self.mark} and, after it, {END}")
        return f"{before}{start}\n{text}{end}{after}"


FOUND = Document("found.md.jinja", "README.md", "<!-- benchmarks/templates/found.md.jinja -->")
DOCUMENTS = (
    FOUND,
    Document("findings.md.jinja", "docs/findings.md"),
    Document("results.md.jinja", "docs/results.md"),
    Document("claims.md.jinja", "docs/claims.md"),
    Document("budgets.md.jinja", "docs/budgets.md", "<!-- benchmarks/templates/budgets.md.jinja -->"),
    Document("findings.yaml.jinja", "leaderboard/findings.yaml"),
)


def sentences(text: str) -> list[str]:
    """The points of a list in Markdown, each on one line."""
    return [" ".join(item.split()) for item in f"\n{text.partition('![')[0]}".split("\n- ")[1:]]


def made(boards: Boards) -> tuple[dict[str, str], list[str]]:
    """The content of every document by its path, and all problems, a line each."""
    statements, files = Statements(boards), {}
    found: list[str] = []
    for document in DOCUMENTS:
        text = statements.made(document.template, found=[json.dumps(own, ensure_ascii=False) for own in found])
        if document is FOUND:
            found = sentences(text)[:ON_THE_PAGE]
        try:
            files[document.path] = document.placed(flowed(text) if document.path.endswith(".md") else text)
        except XMCBenchError as problem:
            statements.problems.append(str(problem))
    return files, [*hand_written(), *statements.problems]


def hand_written() -> list[str]:
    """A line for each number and comparison in a template that no expression makes."""
    paths = sorted(TEMPLATES.glob("*.jinja"))
    return [problem for path in paths for problem in typed(path.read_text(encoding="utf-8"), f"{SHOWN}{path.name}")]


def draw(boards: Boards, out: Path) -> list[Path]:
    """Draw every figure into a folder."""
    drawn = []
    for study in STUDIES.values():
        for figure in study.figures:
            path = out / f"findings-{study.name}-{figure}.svg"
            DRAWN[figure](list(boards[study]), study, path)
            drawn.append(path)
    drawn.append(out / "claims.svg")
    written_claims().draw(drawn[-1])
    return drawn


def write(files: Mapping[str, str]) -> None:
    for name, text in files.items():
        with atomic_write(ROOT / name) as file:
            file.write(text.encode())


def page_picture() -> str:
    """Make the README's picture of the page again; what came of it, in a line."""
    try:
        from page_picture import take  # the page reads what was just written, and playwright may be missing

        return f"wrote {take()}"
    except (ImportError, XMCBenchError) as problem:
        return f"the picture of the page is as before: {problem}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=ACCEPTED)
    parser.add_argument("--show", metavar="TEMPLATE", help="print a document and write nothing")
    options = parser.parse_args()
    try:
        boards = Boards(options.store)
        files, problems = made(boards)
    except XMCBenchError as problem:
        sys.exit(str(problem))
    if options.show:
        print(next(files[own.path] for own in DOCUMENTS if own.template == options.show))
    elif not problems and options.store == ACCEPTED:
        write(files)
        figures = draw(boards, PICTURES)
        print(f"wrote {', '.join(files)} and {len(figures)} figures")
        print(page_picture())
    for line in (*boards.older(), *problems):
        print(line, file=sys.stderr)
    if problems:
        sys.exit(f"{len(problems)} problems; nothing was written. Mend those lines and run this again.")


if __name__ == "__main__":
    main()
