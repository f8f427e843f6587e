"""The project and the vocabulary with which Annif asks the server, by its backend `http`."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from xmcbench.data import Texts
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.trial.record import Record

MARK = "# made by xmcbench serve, which replaces it unless it is edited: "
PROJECTS = "projects.d"  # Annif reads every .cfg in it, unless one of OTHERS is beside it
OTHERS = ("projects.cfg", "projects.toml")


def write_project(
    folder: Path, record: Record, uris: Sequence[str], labels: Texts, language: str, endpoint: str, k: int
) -> list[str]:
    """Write a project and its vocabulary into the subfolder `projects.d`; the commands with which Annif reads them.

    Raises XMCBenchError where a file has the name of one of them that this function did not write, or that was edited.
    """
    dataset, label = _plain(record.trial.dataset) or "dataset", _plain(record.trial.label) or "model"
    name = f"xmcbench-{dataset}-{label}"
    project, vocabulary = (folder / PROJECTS / f"{name}.{ending}" for ending in ("cfg", "tsv"))
    _check_own(project, vocabulary)
    settings = {
        "name": " ".join(f"{record.trial.dataset} {record.trial.label}".split()).replace("%", "%%"),
        "language": language,
        "backend": "http",
        "vocab": f"xmcbench-{dataset}",
        "endpoint": endpoint,
        "limit": str(k),
    }
    lines = f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in settings.items())
    rows = "".join(f"<{uri}>\t{' '.join(labels[at].split())}\n" for at, uri in enumerate(uris))
    for path, content in ((vocabulary, rows), (project, f"{MARK}{_digest(lines, rows)}\n{lines}")):
        with atomic_write(path) as file:
            file.write(content.encode())
    hidden = any((folder / other).exists() for other in OTHERS)
    options = f" --projects {PROJECTS}" if hidden else ""
    return [
        f"annif load-vocab{options} --language {language} {settings['vocab']} {PROJECTS}/{vocabulary.name}",
        f"annif suggest{options} {name} DOCUMENT.txt",
    ]


def _check_own(project: Path, vocabulary: Path) -> None:
    """Raise XMCBenchError unless both files are absent, or are as they were written: the first line says the digest."""
    texts = [path.read_bytes().decode(errors="replace") if path.exists() else "" for path in (project, vocabulary)]
    mark, _, lines = texts[0].partition("\n")
    if any(texts) and mark != f"{MARK}{_digest(lines, texts[1])}":
        raise XMCBenchError(
            f"{project if texts[0] else vocabulary}: found a file that xmcbench did not write, or that was edited "
            "since: expected another --annif FOLDER, or the file moved away"
        )


def _digest(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:16]


def _plain(name: str) -> str:
    """The name as Annif allows in the names of projects and vocabularies: ASCII letters, digits and hyphens."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name).strip("-")
