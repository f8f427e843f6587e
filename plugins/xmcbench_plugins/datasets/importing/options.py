"""The options of an import. Each is taken where it has an effect, so that one without effect can be refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from xmcbench.errors import XMCBenchError, shown

SEPARATOR = ";"  # where none is given
Quoting = Literal["none", "double"]
_WHY = {
    "--encoding": ": Parquet, Arrow and RDF files say how their text is encoded",
    "--separator": ": the labels are lists",
    "--language": ": it chooses among the languages of a SKOS vocabulary, or of columns such as label_en",
    "--quoting": ": only CSV and TSV files are quoted",
    "--test-share": ": the files say which rows are test rows",
    "--test": ": the folder has a test split",
    "--label-key": ": it names a column in a table of label texts",
    "--label-name": ": it names a column in a table of label texts",
    "--strict": ": it is about lines and subjects of an Annif corpus",
}


class Options:
    """What the user gave, by the name of the option; an option that is None or absent was not given."""

    def __init__(self, **given: Any) -> None:
        self._given = {name: value for name, value in given.items() if value not in (None, False)}
        self._taken: set[str] = set()
        if self._given.get("separator") == "":
            raise XMCBenchError("--separator: found nothing, expected the characters between labels")
        if self._peek("text", "text") == self._peek("labels", "labels"):
            column = shown(self._peek("text", "text"))
            raise XMCBenchError(f"--text and --labels: found the column {column} twice, expected two columns")

    def _peek(self, name: str, default: Any) -> Any:
        return self._given.get(name, default)

    def _take(self, name: str, default: Any = None) -> Any:
        self._taken.add(name)
        return self._given.get(name, default)

    def given(self, name: str) -> bool:
        """Whether the user gave the option."""
        return name in self._given

    def check_taken(self, format: str) -> None:
        """Raise XMCBenchError where an option was given that nothing took: it would have no effect."""
        unused = [f"--{name.replace('_', '-')}" for name in self._given if name not in self._taken]
        if unused:
            raise XMCBenchError(
                f"{unused[0]}: has no effect on these files with --format {format}{_WHY.get(unused[0], '')}"
            )

    def as_facts(self) -> dict[str, Any]:
        """The options that were given, as JSON holds them."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in self._given.items()}

    @property
    def text(self) -> str:
        """The column of the texts."""
        return str(self._take("text", "text"))

    @property
    def labels(self) -> str:
        """The column of the labels."""
        return str(self._take("labels", "labels"))

    @property
    def separator(self) -> str:
        r"""What separates labels in a field; `\n` and `\t` may be written with a backslash."""
        return str(self._take("separator", SEPARATOR)).replace("\\n", "\n").replace("\\t", "\t")

    @property
    def group_by(self) -> str | None:
        """The column whose equal values make one row of several, whose labels are joined."""
        return self._optional("group_by")

    @property
    def encoding(self) -> str | None:
        """The encoding of text files; None if it is to be detected."""
        return self._optional("encoding")

    @property
    def label_texts(self) -> Path | None:
        """The file with the labels' texts."""
        return self._path("label_texts")

    @property
    def label_key(self) -> str | None:
        """The column of the labels' keys in a table of label texts."""
        return self._optional("label_key")

    @property
    def label_name(self) -> str | None:
        """The column of the labels' texts in a table of label texts."""
        return self._optional("label_name")

    @property
    def language(self) -> str:
        """The language of the labels' texts."""
        return str(self._take("language", "en"))

    @property
    def test(self) -> Path | None:
        """The file of the test rows."""
        return self._path("test")

    @property
    def test_share(self) -> float:
        """The share of the rows that a hash puts into the test split."""
        return float(self._take("test_share", 0.2))

    @property
    def config(self) -> str | None:
        """The configuration of a Hugging Face dataset."""
        return self._optional("config")

    @property
    def test_split(self) -> str | None:
        """The split of a Hugging Face dataset that is taken as test split."""
        return self._optional("test_split")

    @property
    def strict(self) -> bool:
        """Whether lines without a tab and unknown subjects are errors."""
        return bool(self._take("strict", False))

    @property
    def deduplicate(self) -> bool:
        """Whether repeated texts are left out."""
        return bool(self._take("deduplicate", False))

    def quoting(self, default: Quoting) -> Quoting:
        """Whether quotation marks enclose fields: `double`, as CSV files have it, or `none`."""
        chosen: Quoting = self._take("quoting", default)
        return chosen

    def _optional(self, name: str) -> str | None:
        value = self._take(name)
        return None if value is None else str(value)

    def _path(self, name: str) -> Path | None:
        value = self._take(name)
        return None if value is None else Path(value)
