"""Rows of any source become a dataset folder in the JSON layout, with a report of what was found on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from xmcbench.data.importing.folders import new_folder
from xmcbench.data.importing.rows import Row
from xmcbench.errors import XMCBenchError, suggest


@dataclass
class Imported:
    """The sizes of an imported dataset, and its repeated texts."""

    train: int = 0
    test: int = 0
    labels: int = 0
    repeated: int = 0  # rows whose text an earlier row of their split has
    shared: int = 0  # test rows whose text a training row has
    removed: bool = False  # whether these rows were left out
    folder: Path = field(default_factory=Path)


def split_by_hash(rows: Iterable[Row], test_share: float) -> tuple[list[Row], list[Row]]:
    """Training and test rows by the SHA-256 of the text: the same text always falls into the same split."""
    splits: tuple[list[Row], list[Row]] = [], []
    for row in rows:
        digest = int.from_bytes(sha256(row.text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
        splits[digest < test_share * 2**64].append(row)
    return splits


def write_dataset(
    train: Iterable[Row],
    test: Iterable[Row],
    folder: Path,
    source: str,
    label_texts: dict[str, str] | None = None,
    deduplicate: bool = False,
    replace: bool = False,
) -> Imported:
    """Write `folder` whole or not at all, with `replace` in place of an older dataset.

    Without `label_texts` a label's key is its text.

    With `deduplicate` rows with the text of an earlier row are left out, of the test split also those with a text of
    the training split; their labels are added to those of the earlier row of their split.
    """
    report = Imported(removed=deduplicate, folder=folder)
    ids: dict[str, int] = {key: number for number, key in enumerate(label_texts)} if label_texts else {}
    seen: set[str] = set()
    splits = []
    for rows in (train, test):
        targets = [(row, _label_ids(row, ids, label_texts)) for row in rows]
        splits.append(_unique(targets, seen, report, deduplicate))
        seen = {row.text for row, _ in splits[0]}
    report.train, report.test, report.labels = len(splits[0]), len(splits[1]), len(ids)
    if not (report.train and report.test and report.labels):
        sizes = f"{report.train} training rows, {report.test} test rows and {report.labels} labels"
        raise XMCBenchError(f"{source}: found {sizes}, expected some of each")
    texts = [label_texts[key] if label_texts else key for key in ids]
    with new_folder(folder, replace) as made:
        _write(made, source, {"trn": splits[0], "tst": splits[1]}, texts)
    return report


def _label_ids(row: Row, ids: dict[str, int], label_texts: dict[str, str] | None) -> list[int]:
    if label_texts is None:
        return sorted({ids.setdefault(key, len(ids)) for key in row.labels})
    for key in row.labels:
        if key not in ids:
            near = suggest(key, list(ids)[:10_000])
            raise XMCBenchError(f"{row.where}: found the label {key!r}, which has no text{near}")
    return sorted({ids[key] for key in row.labels})


def _unique(
    targets: list[tuple[Row, list[int]]], elsewhere: set[str], report: Imported, deduplicate: bool
) -> list[tuple[Row, list[int]]]:
    first: dict[str, int] = {}
    unique: list[tuple[Row, list[int]]] = []
    for row, labels in targets:
        if row.text in elsewhere:
            report.shared += 1
        if row.text in first:
            report.repeated += 1
        if deduplicate and row.text in elsewhere:
            continue
        if deduplicate and row.text in first:
            place = first[row.text]
            unique[place] = (unique[place][0], sorted({*unique[place][1], *labels}))
            continue
        first.setdefault(row.text, len(unique))
        unique.append((row, labels))
    return unique


def _write(made: Path, source: str, splits: dict[str, list[tuple[Row, list[int]]]], labels: list[str]) -> None:
    try:
        for name, rows in splits.items():
            with (made / f"{name}.json").open("w", encoding="utf-8") as file:
                file.writelines(
                    json.dumps({"title": row.text, "target_ind": ids}, ensure_ascii=False) + "\n" for row, ids in rows
                )
        with (made / "lbl.json").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"title": text}, ensure_ascii=False) + "\n" for text in labels)
        (made / "card.yaml").write_text(f"source: {json.dumps(source)}\n", encoding="utf-8")
    except UnicodeEncodeError as error:
        raise XMCBenchError(f"{source}: found half a surrogate pair in a text, expected valid Unicode") from error
