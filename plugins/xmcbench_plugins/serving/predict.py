"""`xmcbench predict`: the labels that the model of a finished trial ranks for new texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from xmcbench.cli.options import DataDir, RunName, Seed, StoreDir
from xmcbench.errors import XMCBenchError
from xmcbench.runs.terminal import echo

if TYPE_CHECKING:
    from xmcbench.api import Answers
    from xmcbench_plugins.serving.trained import Trained


def predict(
    run: RunName,
    text: Annotated[list[str] | None, Option(help="A text; may be given several times.")] = None,
    file: Annotated[
        Path | None, Option(allow_dash=True, help="A file with one text per line; - is standard input.")
    ] = None,
    labels: Annotated[
        Path | None, Option(help="A file with one label per line, which are ranked beside those of training.")
    ] = None,
    k: Annotated[int, Option("-k", min=1, help="Labels per text.")] = 10,
    threshold: Annotated[
        str | None,
        Option(
            metavar="auto|P",
            help="Only labels with at least this probability; auto: those with the best micro-F1 on held-out queries.",
        ),
    ] = None,
    format: Annotated[Literal["table", "json"], Option(help="json has full precision.")] = "table",
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Rank the labels of a trial's dataset for new texts, best first. Added labels have the ids after the others.

    A label has a probability where the trial held out queries to fit it on, else a score. A text without a word of the
    training data has no label.
    """
    texts = [*(text or []), *(lines(file) if file else [])]
    if not texts:
        raise XMCBenchError("predict: no texts: expected --text TEXT or --file FILE")
    given: dict[str, Any] = {"seed": seed, "store": store, "data": data}
    added: dict[str, Any] = {"labels": lines(labels), "labels_from": str(labels)} if labels else {}
    found = answers(run, texts, k=k, threshold=threshold, **given, **added)
    if format == "json":
        echo(json.dumps(found.answers, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        echo(str(found))


def answers(
    run: str,
    texts: Sequence[str],
    *,
    k: int,
    threshold: str | None,
    labels: Sequence[str] | None = None,
    labels_from: str = "labels",
    seed: int | None,
    data: Path,
    store: Path,
) -> Answers:
    """What `xmcbench.predict` returns, and the command prints."""
    from xmcbench.api import Answers

    model = trained(run, seed, store, data)
    if labels is not None:
        model = model.with_labels(labels, labels_from)
    cut = None if threshold is None else model.cut(threshold)
    ranked = zip(texts, model.rank(texts, k, cut), strict=True)
    return Answers(
        [
            {"text": text, "labels": own} | ({} if own else {"no_label": model.why_none(text, cut)})
            for text, own in ranked
        ]
    )


LARGEST = 1_000_000_000  # bytes of a file of texts


def lines(file: Path) -> list[str]:
    """The lines of a UTF-8 file or of standard input, which only a newline ends, as in a dataset."""
    from xmcbench.files.regular import read_regular

    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else read_regular(file, LARGEST)
        found = [line.removesuffix("\r") for line in content.decode("utf-8-sig").split("\n")]
        return found if found[-1] else found[:-1]
    except UnicodeDecodeError as problem:
        raise XMCBenchError(f"{file}: not UTF-8 (byte {problem.start})") from problem


def trained(run: str, seed: int | None, store: Path, data: Path) -> Trained:
    """The model of the trial that `run` and `seed` mean."""
    from xmcbench.reporting.find import find_trial
    from xmcbench.trial.store import Store
    from xmcbench_plugins.serving.trained import trained_model

    place = Store(store)
    return trained_model(place, find_trial(place, run, seed), data)
