"""Folders of Hugging Face `datasets`: what `save_to_disk` writes, and the layouts of a repository on the hub.

What the files say of themselves is read without the library: names of classes, configurations, splits, the number of
their files and of their rows. It lies in the metadata of Parquet and Arrow schemas, in `dataset_info.json`,
`state.json` and `dataset_dict.json`, and in the header of `README.md`.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from xmcbench.data.importer import Row
from xmcbench.errors import UnknownNameError, XMCBenchError, import_extra
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.records import open_arrow, open_parquet, suffix_of
from xmcbench_plugins.datasets.importing.rows import read_rows
from xmcbench_plugins.datasets.inspection import Kind, Report, Severity

ENDINGS = (".parquet", ".arrow", ".jsonl", ".json", ".csv", ".tsv")
KNOWN_FILES = frozenset(("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json"))
SHARD = re.compile(r"(?P<stem>.*?)-?(?P<number>\d{5})-of-(?P<total>\d{5})(?:-[0-9a-f]{16})?$")
COUNTED = re.compile(r"(?P<stem>(?:.*[-_.])?)(?P<number>0\d*|\d{1,3})$")  # 0000, train-1, train_00001: no year
NO_DATA = re.compile(r"README|LICEN[SC]E|CITATION|.*\.py$", re.IGNORECASE)
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
}
HIDDEN = -1  # the class of a row whose labels are not published
DEFAULT = "default"
README_BYTES = 1 << 20


@dataclass
class _Split:
    """The files of a split, and what is said of them."""

    files: list[Path] = field(default_factory=list)
    num_rows: int | None = None


@dataclass(frozen=True)
class HuggingFace:
    """The rows of both splits, and the names of the classes, if labels are numbers of classes."""

    splits: dict[str, Iterator[Row]]
    class_names: list[str] | None


def read_hugging_face(folder: Path, options: Options, report: Report) -> HuggingFace:
    """The train and test splits of a folder. Raises XMCBenchError where one, or its configuration, is not clear."""
    if not folder.is_dir():
        raise XMCBenchError(f"{folder}: found no such folder")
    facts = _Facts(folder)
    configs = _configs(folder, facts)
    name = _chosen(folder, configs, options)
    splits = configs[name]
    test = _split_name(options.test_split or "test")
    for wanted in ("train", test):
        if wanted not in splits:
            raise _no_split(folder, wanted, splits)
    if others := sorted(splits.keys() - {"train", test}):
        report.add(Kind.UNREAD_SPLITS, Severity.NOTE, len(others), place=str(folder), names=others)
    used = {"train": splits["train"], "test": splits[test]}
    facts.add_sizes(name, {"train": used["train"], test: used["test"]})
    names = facts.class_names(name, [path for found in used.values() for path in found.files], options.labels)
    _look_for_others(folder, configs, report)
    if names:
        report.add(Kind.CLASS_NAMES, Severity.NOTE, len(names), example=names[0], place=str(folder))
    for split, found in used.items():
        _check_one_format(folder, split, found.files)
    rows = {split: _rows(split, found, options, report, names) for split, found in used.items()}
    for split, found in used.items():
        _check_shards(split, found.files, report)
    return HuggingFace(rows, names)


def _others(folder: Path, configs: Mapping[str, Mapping[str, _Split]]) -> list[Path]:
    """The files of a folder that belong to no split, and could be data."""
    known = {path for splits in configs.values() for found in splits.values() for path in found.files}
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path not in known
        and path.name not in KNOWN_FILES
        and not (NO_DATA.match(path.name) or path.name.startswith("cache-"))
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def _look_for_others(folder: Path, configs: Mapping[str, Mapping[str, _Split]], report: Report) -> None:
    if others := _others(folder, configs):
        names = [path.relative_to(folder).as_posix() for path in others[:5]]
        report.add(Kind.UNREAD_FILES, Severity.NOTE, len(others), place=str(folder), names=names)


def _no_split(folder: Path, wanted: str, splits: Mapping[str, _Split]) -> XMCBenchError:
    found = ", ".join(sorted(splits)) or "none"
    if not splits and (unread := _others(folder, {})):
        found += f"; files that are not read: {', '.join(path.name for path in unread[:3])}"
    others = sorted(splits.keys() - {"train"})
    hint = f", or --test-split {others[0]}, which takes that one" if wanted != "train" and others else ""
    made = "" if hint else "; of one split `dataset.train_test_split(0.2).save_to_disk(folder)` makes both"
    expected = f"expected {wanted}/*.arrow or {wanted}-*.parquet{hint}{made}"
    return XMCBenchError(f"{folder}: found no {wanted} split (splits: {found}), {expected}")


def _rows(split: str, found: _Split, options: Options, report: Report, names: Sequence[str] | None) -> Iterator[Row]:
    """The rows of all files of a split; the class -1 is no label."""
    count = hidden = 0
    first = ""
    named = names is not None
    there = [path for path in found.files if path.is_file()]  # `_check_shards` names the others
    for row in chain.from_iterable(read_rows(path, options, report, named) for path in there):
        count += 1
        if names is not None and str(HIDDEN) in row.labels:
            hidden, first = hidden + 1, first or row.where
            row = Row(row.text, [label for label in row.labels if label != str(HIDDEN)], row.where)
        yield row
    if hidden:
        severity = Severity.GRAVE if hidden == count else Severity.DOUBT
        report.add(Kind.HIDDEN_LABELS, severity, hidden, count, place=first, names=[split])
    if found.num_rows is not None and count != found.num_rows:
        report.add(
            Kind.MISSING_ROWS,
            Severity.GRAVE,
            count,
            found.num_rows or 0,
            place=str(found.files[0].parent),
            names=[split],
        )


# Files, splits, configurations --------------------------------------------------------------------------------------


def _configs(folder: Path, facts: _Facts) -> dict[str, dict[str, _Split]]:
    """The splits of each configuration: as README.md says, else as folders and names of files show."""
    if (folder / "dataset_dict.json").is_file() or (folder / "train" / "state.json").is_file():
        return {DEFAULT: _saved_splits(folder)}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _is_data(path, folder)]
    declared = {name: _declared_splits(folder, patterns, files) for name, patterns in facts.declared_files().items()}
    if found := {name: splits for name, splits in declared.items() if splits}:
        return found
    configs: dict[str, dict[str, _Split]] = defaultdict(lambda: defaultdict(_Split))
    for path in files:
        if place := _place(path.relative_to(folder)):
            config, split = place
            configs[config][split].files.append(path)
    return {name: dict(splits) for name, splits in configs.items()}


def _is_data(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    named = path.name in KNOWN_FILES or path.name.startswith("cache-")
    return suffix_of(path) in ENDINGS and not hidden and not named


def _saved_splits(folder: Path) -> dict[str, _Split]:
    """What `DatasetDict.save_to_disk` wrote: `state.json` names the files of a split; others are left over."""
    splits: dict[str, _Split] = {}
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        state = _json(part / "state.json")
        named = state.get("_data_files") if isinstance(state, dict) else None
        if isinstance(named, list) and named and all(isinstance(each, dict) and "filename" in each for each in named):
            files = [part / str(each["filename"]) for each in named]
        else:
            files = sorted(path for path in part.glob("*.arrow") if not path.name.startswith("cache-"))
        if files:
            splits[part.name] = _Split(files)
    return splits


def _declared_splits(folder: Path, patterns: Mapping[str, Sequence[str]], files: Sequence[Path]) -> dict[str, _Split]:
    splits = {}
    for split, globs in patterns.items():
        matching = [
            path
            for path in files
            if any(fnmatch.fnmatch(path.relative_to(folder).as_posix(), glob.replace("**/", "*")) for glob in globs)
        ]
        splits[split] = _Split(matching)
    return {split: found for split, found in splits.items() if found.files}


def _place(path: Path) -> tuple[str, str] | None:
    """Configuration and split of a file, by the names of its folders and its own.

    >>> _place(Path("data/train-00000-of-00002.parquet")), _place(Path("en/test/0000.parquet"))
    (('default', 'train'), ('en', 'test'))
    >>> _place(Path("en/partial-train/0000.parquet")), _place(Path("README.csv"))
    (('en', 'train'), None)
    >>> _place(Path("train-1.parquet")), _place(Path("train-part-02.parquet")), _place(Path("train-2019.parquet"))
    (('default', 'train'), ('default', 'train'), ('2019', 'train'))
    """
    folders = [part for part in path.parts[:-1] if part != "data"]
    stem = PurePosixPath(path.name.removesuffix(".gz").removesuffix(".xz")).stem
    shard = SHARD.match(stem)
    name = re.split(r"[-_.]", shard["stem"] if shard else stem)
    known = [part for part in name if part.lower() in SPLIT_NAMES]
    if known:
        split = known[0]
        rest = "-".join(part for part in name if part and part not in (split, "part") and not COUNTED.match(part))
        return "/".join([*folders, *([rest] if rest else [])]) or DEFAULT, _split_name(split)
    if folders and (split := _split_name(folders[-1].removeprefix("partial-"))) in SPLIT_NAMES.values():
        return "/".join(folders[:-1]) or DEFAULT, split
    return None


def _split_name(name: str) -> str:
    return SPLIT_NAMES.get(name.lower(), name)


def _chosen(folder: Path, configs: Mapping[str, Mapping[str, _Split]], options: Options) -> str:
    if options.given("config"):
        if options.config not in configs:
            raise UnknownNameError("configuration", str(options.config), configs, str(folder))
        return str(options.config)
    if len(configs) > 1:
        names = ", ".join(sorted(configs))
        raise XMCBenchError(f"{folder}: found the configurations {names}, expected one of them: --config says which")
    if not configs:
        raise _no_split(folder, "train", {})
    return next(iter(configs))


def _check_one_format(folder: Path, split: str, files: Sequence[Path]) -> None:
    """Raise XMCBenchError where a split has files of two formats, which are likely two copies of it."""
    first = files[0]
    if other := next((path for path in files if suffix_of(path) != suffix_of(first)), None):
        names = " and ".join(path.relative_to(folder).as_posix() for path in (first, other))
        raise XMCBenchError(f"{folder}: found {names} for the {split} split, expected files of one format")


def _check_shards(split: str, files: Sequence[Path], report: Report) -> None:
    """Say which of a split's files are missing: of `-00000-of-00002` the names say how many there are."""
    by_stem: dict[tuple[Path, str], list[re.Match[str]]] = defaultdict(list)
    counted: dict[tuple[Path, str, int], list[int]] = defaultdict(list)
    for path in files:
        stem = PurePosixPath(path.name).stem
        if shard := SHARD.match(stem):
            by_stem[path.parent, shard["stem"]].append(shard)
        elif number := COUNTED.match(stem):
            width = len(number["number"]) if number["number"].startswith("0") else 0
            counted[path.parent, number["stem"], max(width, 1)].append(int(number["number"]))
        if not path.is_file():
            report.add(Kind.MISSING_SHARD, Severity.GRAVE, 1, len(files), place=str(path.parent), names=[path.name])
    for (parent, stem), shards in by_stem.items():
        total = max(int(shard["total"]) for shard in shards)
        there = {int(shard["number"]) for shard in shards}
        ending = suffix_of(files[0])
        missing = [f"{stem}-{number:05}-of-{total:05}{ending}" for number in range(total) if number not in there]
        if missing:
            report.add(Kind.MISSING_SHARD, Severity.GRAVE, len(missing), total, place=str(parent), names=missing[:5])
    for (parent, stem, width), numbers in counted.items():
        first = 1 if min(numbers) == 1 else 0
        total = max(numbers) + 1 - first
        absent = (number for number in range(first, max(numbers)) if number not in numbers)
        missing = [f"{stem}{number:0{width}}{suffix_of(files[0])}" for number in absent]
        if missing:
            report.add(Kind.MISSING_SHARD, Severity.GRAVE, len(missing), total, place=str(parent), names=missing[:5])
    if any(part.startswith("partial-") for path in files for part in path.parts):
        report.add(Kind.MISSING_ROWS, Severity.GRAVE, place=str(files[0].parent), names=[split])


# What the files say of themselves -----------------------------------------------------------------------------------


class _Facts:
    """The descriptions beside the data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readme = _readme(folder / "README.md")

    def declared_files(self) -> dict[str, dict[str, list[str]]]:
        """Patterns of files by split and configuration, of README.md's `configs`."""
        found: dict[str, dict[str, list[str]]] = {}
        for config in _list(self._readme.get("configs")):
            files = config.get("data_files")
            patterns: dict[str, list[str]] = {}
            for entry in _list(files):
                paths = entry.get("path")
                patterns[_split_name(str(entry.get("split", "train")))] = (
                    [paths] if isinstance(paths, str) else list(paths or [])
                )
            if isinstance(files, str):
                patterns["train"] = [files]
            if patterns:
                found[str(config.get("config_name", DEFAULT))] = patterns
        return found

    def _infos(self, config: str) -> Iterator[Mapping[str, Any]]:
        """The descriptions of a configuration of a repository."""
        for info in _list(self._readme.get("dataset_info")):
            if str(info.get("config_name", config)) == config:
                yield info
        infos = _json(self._folder / "dataset_infos.json")
        if isinstance(infos, dict):
            yield from _list(infos.get(config) or (next(iter(infos.values())) if len(infos) == 1 else None))

    def add_sizes(self, config: str, splits: Mapping[str, _Split]) -> None:
        """Enter how many rows each split has, where a description says so.

        Not that of a saved split: it has the sizes from before rows were chosen.
        """
        for info in self._infos(config):
            said = info.get("splits")
            entries = said.values() if isinstance(said, dict) else _list(said)
            for entry in entries:
                if isinstance(entry, dict) and isinstance(entry.get("num_examples"), int):
                    split = splits.get(_split_name(str(entry.get("name", ""))))
                    if split is not None and split.num_rows is None:
                        split.num_rows = entry["num_examples"]

    def class_names(self, config: str, files: Sequence[Path], column: str) -> list[str] | None:
        """The names of the classes that a column has, by the schemas of the files, else by a description.

        Raises XMCBenchError where two files name them otherwise.
        """
        named: dict[Path, list[str]] = {}
        for file in files:
            saved = _json(file.with_name("dataset_info.json"))
            features = [_schema_features(file), saved.get("features") if isinstance(saved, dict) else None]
            if names := next((found for each in features if (found := _names(_feature(each, column)))), None):
                named[file] = names
        if named:
            first, names = next(iter(named.items()))
            for file, others in named.items():
                _check_same_classes(first, names, file, others)
            return names
        described = (_names(_feature(info.get("features"), column)) for info in self._infos(config))
        return next(filter(None, described), None)


def _check_same_classes(first: Path, names: Sequence[str], file: Path, others: Sequence[str]) -> None:
    for number, (name, other) in enumerate(zip_longest(names, others)):
        if name != other:
            raise XMCBenchError(
                f"{file}: found {other!r} as the name of class {number}, which is {name!r} in {first}, expected the "
                "same classes in all files"
            )


def _feature(features: Any, column: str) -> Any:
    """The description of a column; README.md has a list of them, other places an object."""
    if isinstance(features, dict):
        return features.get(column)
    return next((each for each in _list(features) if each.get("name") == column), None)


def _names(feature: Any) -> list[str] | None:
    """The names of a `ClassLabel`, alone or within a list."""
    if isinstance(feature, list):
        return _names(feature[0]) if len(feature) == 1 else None
    if not isinstance(feature, dict):
        return None
    names = feature.get("names")
    if isinstance(names, list) and feature.get("_type", "ClassLabel") == "ClassLabel":
        return list(map(str, names))
    if isinstance(names, dict) and all(str(key).isdigit() for key in names):  # README.md numbers them
        return [str(names[key]) for key in sorted(names, key=int)]
    inner = (feature.get(key) for key in ("feature", "dtype", "sequence", "list", "class_label"))
    return next((found for each in inner if (found := _names(each))), None)


def _schema_features(file: Path) -> Any:
    """The features that `datasets` writes into the metadata of a Parquet or Arrow schema."""
    metadata: Any = None
    with suppress(OSError, ValueError, XMCBenchError):
        if suffix_of(file) == ".parquet":
            metadata = open_parquet(file).schema_arrow.metadata
        elif suffix_of(file) == ".arrow":
            metadata = open_arrow(import_extra("pyarrow", "parquet", "reading Arrow files"), file).schema.metadata
        if metadata and b"huggingface" in metadata:
            return json.loads(metadata[b"huggingface"]).get("info", {}).get("features")
    return None


def _readme(path: Path) -> Mapping[str, Any]:
    """The header of README.md, between lines of three hyphens."""
    import yaml

    with suppress(OSError, ValueError, yaml.YAMLError):
        with path.open("rb") as file:
            content = file.read(README_BYTES).decode("utf-8-sig")
        if header := re.match(r"---\s*\n(.*?)\n---", content, re.DOTALL):
            found = yaml.safe_load(header[1])
            return found if isinstance(found, dict) else {}
    return {}


def _json(path: Path) -> Any:
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_bytes())
    return None


def _list(value: Any) -> list[dict[str, Any]]:
    """The objects in a value that is one, or a list of them."""
    values: Iterable[Any] = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, dict)]
