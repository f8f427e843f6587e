"""Both tutorials, walked as they are written: every file, every command, every printed output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from environments import environment
from printed import stable

DOCS = Path(__file__).parents[1] / "docs"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
ELLIPSIS = "..."  # a line of shown output that stands for any lines


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """The fenced blocks of a page in order: language, content, and the paragraph before."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        yield match[1], match[2], text[: match.start()].rstrip().rsplit("\n\n", 1)[-1]


class Reader:
    """Somebody who does what a tutorial says, in a folder and a Python environment of their own."""

    def __init__(self, folder: Path, tolerance: float) -> None:
        self.folder, self.tolerance = folder / "work", tolerance
        self.said, self.module = "", folder
        self.folder.mkdir()
        self.python = environment(folder / "environment")
        own = {
            "XMCBENCH_CACHE": str(folder / "cache"),
            "COLUMNS": "200",
            "OMP_NUM_THREADS": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        self.environment = {**os.environ, **own}

    def follow(self, page: str) -> None:
        """Do what the page says. Shown output stands after the commands that print it."""
        for language, content, before in blocks(page):
            if language == "sh":
                self.said = "".join(self.run(command) for command in content.splitlines())
            elif language == "yaml":
                (self.folder / content.splitlines()[0].removeprefix("# ")).write_text(content)
            elif language == "python":
                self.write(content, before)
            else:
                check_shown(content, self.said, self.tolerance)

    def run(self, command: str) -> str:
        """What a command prints."""
        words = shlex.split(command)
        programs = {
            "xmcbench": [self.python, "-m", "xmcbench"],
            "pip": [sys.executable, "-m", "pip", "--python", self.python],
        }
        if words[0] == "pip":
            words[2:2] = ["--quiet", "--no-deps", "--no-build-isolation"]
        whole = [*programs[words[0]], *words[1:]]
        done = subprocess.run(whole, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, content: str, before: str) -> None:
        """Run a program, replace a module, or change the module that was replaced before."""
        if found := re.search(r"Replace `(.*?)` by", before):
            self.module = self.folder / found[1]
            self.module.write_text(content)
        elif "replace the last line" in before:
            module = self.module.read_text()
            (fit,) = re.findall(r"^    def fit\(.*?(?=^$)", module, flags=re.DOTALL | re.MULTILINE)
            *kept, _ = fit.splitlines(keepends=True)
            changed = module.replace(fit, "".join(kept) + content)
            changed = re.sub(r"(MethodInfo\(summary=.*)\)", r"\1, version=2)", changed)
            self.module.write_text(changed)
        else:
            subprocess.run([self.python, "-c", content], cwd=self.folder, check=True)


def check_shown(shown: str, said: str, tolerance: float) -> None:
    """Assert that `shown` is part of `said`, in consecutive lines; a line of dots stands for any lines.

    Numbers may differ by the fraction `tolerance`.
    """
    rest = [line for line in stable(said) if line]
    for part in "\n".join(line for line in stable(shown) if line).split(ELLIPSIS):
        lines = part.strip().splitlines()
        starts = range(len(rest) - len(lines) + 1)
        found = (n for n in starts if all(map(partial(alike, tolerance), lines, rest[n : n + len(lines)])))
        start = next(found, None)
        assert start is not None, f"found\n{said}\nexpected\n{part}"
        rest = rest[start + len(lines) :]


def alike(tolerance: float, one: str, other: str) -> bool:
    """Whether two lines are equal but for numbers that differ by at most that fraction."""
    same_words = NUMBER.sub("0", one) == NUMBER.sub("0", other)
    numbers = [[float(number.replace(",", "")) for number in NUMBER.findall(line)] for line in (one, other)]
    return same_words and numbers[0] == pytest.approx(numbers[1], rel=tolerance, abs=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "tolerance"),
    [("tutorial-data.md", 0.2), ("tutorial-method.md", 0.0)],  # numbers of a trained network depend on the machine
    ids=["data", "method"],
)
def test_a_tutorial_works_as_it_is_written(page: str, tolerance: float, tmp_path: Path) -> None:
    Reader(tmp_path, tolerance).follow(page)
