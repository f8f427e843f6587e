"""`xmcbench datasets`: the list and what `show` tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from xmcbench.data.tokens import Tokens
from xmcbench.engine.encoders import tokenizer
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.datasets.commands import app
from xmcbench_plugins.sources.made import ProductCatalog


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "cache"))


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "250"})
    assert result.exit_code == 0
    return result.output


def make(folder: Path) -> Path:
    """A dataset in the layout of raw text."""
    folder.mkdir()
    for name, lines in {
        "trn_X": "a\nb\nc\n",
        "tst_X": "c\n",
        "Y": "x\n",
        "trn_X_Y": "3 1\n0:1\n\n\n",
        "tst_X_Y": "1 1\n0:1\n",
    }.items():
        (folder / f"{name}.txt").write_text(lines)
    return folder


def test_the_list_names_everything_and_what_is_here(tmp_path: Path) -> None:
    make(tmp_path / "mine")
    rows = {line.split()[0]: line.split() for line in output("--data", str(tmp_path)).splitlines() if line.strip()}
    assert rows["lf-amazontitles-131k"][1:7] == ["no", "294,805", "134,835", "131,073", "0.6", "2.6"]
    assert rows["lf-wikipedia-500k"][5:7] == ["0.5", "0.4"]
    assert rows["mine"][1] == "yes"
    assert rows["tstar"][1] == "yes"
    assert {"catalog-<n>", "random-pairs-<n>", "debian-packages", "eurlex-4k"} <= set(rows)
    assert output("list", "--data", str(tmp_path)) == output("--data", str(tmp_path))


def test_a_folder_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    make(tmp_path / "mine")
    (make(tmp_path / "twice") / "Y.txt.gz").write_bytes(b"")
    (make(tmp_path / "misspelt") / "card.yaml").write_text("max_lenght: 9\n")
    (make(tmp_path / "part") / "Y.txt").unlink()
    lines = output("--data", str(tmp_path)).splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert [rows[name].split()[1] for name in ("mine", "twice", "misspelt")] == ["yes", "no", "no"]
    assert "mine" in output("show", "mine", "--data", str(tmp_path))
    for name, message in {
        "twice": "twice: found both Y.txt and Y.txt.gz",
        "misspelt": r"card.yaml:1: max_lenght: unknown key \(did you mean 'max_length'",
        "part": "part: found part of the raw text layout, expected also Y.txt",
        "min": r"unknown dataset 'min' \(did you mean 'mine'",
    }.items():
        with pytest.raises(XMCBenchError, match=message):
            output("show", name, "--data", str(tmp_path))


def test_show_counts_what_the_generator_made(tmp_path: Path) -> None:
    text = output("show", "tstar", "--data", str(tmp_path))
    rows = dict(line.split("  ", 1) for line in text.splitlines() if "  " in line)
    told = {key: value.strip() for key, value in rows.items()}
    assert told["labels"] == "5,000"
    assert told["labels per training query"] == "mean 1.40, median 1, 1 to 5"
    assert told["words per query"] == "mean 16.00, median 16, 16 to 16"
    assert told["head labels (>= 50 training queries)"] == "5"
    assert told["ignored pairs, test"] == "0"
    assert len(told["content hash"]) == 64
    assert Path(told["prepared copy"]).is_dir()


def test_show_gives_sample_rows_and_a_figure(tmp_path: Path) -> None:
    text = output("show", "catalog-100", "--samples", "1", "--figures", str(tmp_path / "figures"))
    assert "training query 0: " in text
    assert "  label " in text
    assert "training query 1: " not in text
    assert (tmp_path / "figures" / "catalog-100-labels.svg").is_file()


def test_a_prepared_dataset_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "240 training queries" in output("prepare", "catalog-100", "--encoder", "tiny")
    monkeypatch.setattr(ProductCatalog, "read", lambda *_: pytest.fail("read again"))
    monkeypatch.setattr(Tokens, "of", lambda *_: pytest.fail("tokenised again"))
    monkeypatch.setattr(tokenizer, "train_tokenizer", lambda *_: pytest.fail("trained again"))
    output("prepare", "catalog-100", "--encoder", "tiny")
    rows = [line for line in output("show", "catalog-100").splitlines() if line.startswith("tokens per ")]
    assert [row.split("  ")[0] for row in rows] == ["tokens per query (tiny)", "tokens per label (tiny)"]
