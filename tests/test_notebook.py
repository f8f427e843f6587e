"""The notebook of the Python interface runs in a kernel and prints what it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from printed import stable

NOTEBOOK = Path(__file__).parents[1] / "docs" / "python.ipynb"


def outputs(cell: Any) -> dict[str, str]:
    """What a cell put out, by kind of output: text by its name, anything else by its media type."""
    found: dict[str, str] = {}
    for output in cell["outputs"]:
        shown = output["data"] if "data" in output else {output["name"]: output["text"]}
        found |= {f"{output['output_type']} {kind}": content for kind, content in shown.items()}
    return found


def comparable(text: str) -> list[str]:
    """The lines of a text without times and memory; of a table in HTML, without numbers."""
    return stable(re.sub(r"[\d.,]+", "0", text) if "<table" in text else text)


@pytest.mark.long
def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XMCBENCH_CACHE", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("COLUMNS", raising=False)  # some libraries set it: tables would be as wide as it says
    written = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(written)
    ran = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(ran, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [pair for pair in zip(written["cells"], ran["cells"], strict=True) if pair[0]["cell_type"] == "code"]
    for before, after in cells:
        shown, found = outputs(before), outputs(after)
        assert shown.keys() == found.keys(), before["source"]
        if "xb.leaderboard" in before["source"]:  # of papers: rows may be added
            assert all(found.values())
        else:
            assert {kind: comparable(text) for kind, text in shown.items()} == {
                kind: comparable(text) for kind, text in found.items()
            }
    called = "".join(before["source"] for before, _ in cells)
    assert all(f"xb.{name}(" in called for name in ("load", "run", "leaderboard", "score"))
    progress = outputs(cells[1][1])["display_data text/html"]
    assert progress.count(": ok<br>") == 2
    assert "<progress" not in progress  # the bars of finished trials are gone
