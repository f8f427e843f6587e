"""CONTRIBUTING's steps, followed in a copy of the project: a method, a dataset and a published row are added.

A test that pins a list or a count fails here, as it would for whoever adds the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # the pages are made again, and eight files of tests run

ROOT = Path(__file__).parents[1]
PARTS = (
    *(
        ".ci",
        ".pre-commit-config.yaml",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Dockerfile",
        "README.md",
        "constraints.txt",
    ),
    *("mkdocs.yml", "pyproject.toml", "benchmarks", "docs", "leaderboard", "plugins", "suites", "tests", "xmcbench"),
)
# What watches over lists of methods, datasets and published rows.
WATCHING = (
    "tests/plugins/sources/test_catalog.py",
    "tests/plugins/board/test_printed_rows.py",
    "tests/plugins/board/test_papers.py",
    "tests/test_corridors.py",
    "tests/test_package.py",
    "tests/test_site.py",
    "tests/test_storeys.py",
)
METADATA = "from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel('.')"
RAREST = '''"""The method rarest: labels by how few training queries they have."""

import numpy as np

from xmcbench import Method, MethodInfo, Predictions, evaluation, hookimpl


class Rarest(Method):
    """Ranks labels by how few training queries they have."""

    name = "rarest"
    info = MethodInfo(summary="the labels with the fewest training queries, for every query")
    uses_gpu = False

    def fit(self, train, run):
        with run.ledger.stage("train"):
            self.scores_L = -np.asarray(train.targets.sum(axis=0), np.float32).ravel()

    def predict(self, texts, k):
        labels_1L = np.arange(len(self.scores_L), dtype=np.int32)[None]
        best = evaluation.rank(labels_1L, self.scores_L[None], k)
        return Predictions(*(np.repeat(row_1K, len(texts), axis=0) for row_1K in (best.indices, best.scores)))

    def save(self, directory):
        np.save(directory / "scores.npy", self.scores_L)

    def load(self, directory):
        self.scores_L = np.load(directory / "scores.npy", allow_pickle=False)


@hookimpl
def register_methods(register):
    register(Rarest)
'''


def insert(path: Path, mark: str, added: str) -> None:
    """Put `added` before the first line that begins with `mark`."""
    text = path.read_text(encoding="utf-8")
    place = re.search(f"^{re.escape(mark)}", text, flags=re.MULTILINE)
    assert place, f"{path.name}: no line begins with {mark!r}"
    path.write_text(text[: place.start()] + added + text[place.start() :], encoding="utf-8")


def run(copy: Path, *command: str) -> str:
    """The output of a Python program in the copy, which has to end well."""
    environment = {**os.environ, "PYTHONPATH": f"{copy}:{copy / 'plugins'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for part in PARTS:
        source, target = ROOT / part, tmp_path / "project" / part
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "predictions"))
        else:
            shutil.copy(source, target)
    return tmp_path / "project"


def add_a_method(copy: Path) -> None:
    """A plugin with its README, entry point, line of the documentation, and the training of its corridor."""
    folder = copy / "plugins" / "xmcbench_plugins" / "rarest"
    folder.mkdir()
    (folder / "__init__.py").write_text(RAREST, encoding="utf-8")
    (folder / "README.md").write_text("# Rarest\n\nThe reverse of `popular`.\n", encoding="utf-8")
    insert(copy / "pyproject.toml", "unidec = ", 'rarest = "xmcbench_plugins.rarest"\n')
    insert(
        copy / "docs" / "methods.md",
        "| [`popular`]",
        "| [`rarest`](../plugins/xmcbench_plugins/rarest/README.md) | rare |\n",
    )
    methods = copy / "tests" / "corridor_methods.py"
    insert(
        methods,
        '    "popular":',
        '    "rarest": Training({}, Mistake("sign of the scores", after_fit=negate_scores)),\n',
    )
    insert(
        methods,
        "def square_labels",
        "def negate_scores(method: Any) -> None:\n    method.scores_L = -method.scores_L\n\n\n",
    )


def add_a_dataset(copy: Path) -> None:
    draft = 'name="lf-prints-1k", num_train=900, num_test=100, num_labels=1_000, source="prints", licence="CC0"'
    catalog = copy / "plugins" / "xmcbench_plugins" / "sources" / "catalog.py"
    insert(catalog, "SMALL = (", f"PRINTS = Draft({draft})\n")
    catalog.write_text(catalog.read_text(encoding="utf-8").replace("\nSMALL = (", "\nSMALL = (\n    PRINTS,", 1))
    row = "| `lf-prints-1k` | 900 | 100 | 1,000 | 0.55 / 1.5 | 32 | title content |\n"
    insert(copy / "docs" / "datasets.md", "| `lf-tate-titles-16k` |", row)


def add_a_published_row(copy: Path) -> None:
    paper = copy / "leaderboard" / "published" / "lever.yaml"
    figures = "figures: [47.00, 31.00, 22.50, 39.80, 45.50, 50.40]"
    insert(paper, "      - {method: Renée, ", f"      - {{method: Newcomer, {figures}}}\n")
    family = "  - {name: Newcomer, family: with classifier}\n"
    insert(copy / "leaderboard" / "methods.yaml", "  - {name: Renée, ", family)
    told = (copy / "docs" / "published.md").read_text(encoding="utf-8")
    count = re.search(r"^\| `lever` \|.*?\| (\d+) \|", told, flags=re.MULTILINE)
    assert count
    told = told[: count.start(1)] + str(int(count[1]) + 1) + told[count.end(1) :]
    (copy / "docs" / "published.md").write_text(told, encoding="utf-8")


def test_the_steps_add_a_method_a_dataset_and_a_published_row(copy: Path) -> None:
    add_a_method(copy)
    add_a_dataset(copy)
    add_a_published_row(copy)
    run(copy, "-c", METADATA)
    assert "rarest" in run(copy, "-m", "xmcbench", "methods")
    assert "rarest" in run(copy, "tests/corridors.py")
    run(copy, "docs/generated.py")
    shown = run(copy, "-m", "xmcbench", "leaderboard", "--dataset", "lf-amazontitles-131k", "--all")
    assert "Newcomer" in shown
    run(copy, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long and not slow", *WATCHING)
