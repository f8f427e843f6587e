"""What can be said of trials before they run: too few steps, parts that will not run, texts that are cut."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xmcbench.data.extent import MUCH_CUT, Extent, share_cut
from xmcbench.suite.suite import Extents
from xmcbench.trial.build import build_method
from xmcbench.trial.record import FEW_STEPS
from xmcbench.trial.trial import Trial


def remarks(trials: Sequence[Trial], extents: Extents) -> list[str]:
    """A line for each thing that will make less of trials than their settings say; the same of several is one line."""
    first = {(trial.dataset, trial.label): trial for trial in reversed(trials)}
    labels: dict[str, dict[str, None]] = {}
    same: dict[str, dict[str, frozenset[str]]] = defaultdict(dict)
    for trial in reversed(first.values()):
        data = extents.get(trial.dataset)
        if data is None:
            continue
        method = build_method(trial)
        spent = method.foreseen(data, trial.budget)
        idle = method.idle_parts(spent)
        texts = [*_of_steps(spent), *(f"no {part}" for part, _ in idle), *_of_texts(trial, data)]
        for text in texts:
            labels.setdefault(f"{trial.dataset}: {text}", {})[trial.label] = None
        settings = frozenset[str]().union(*(part.settings for part in idle))
        config = {name: value for name, value in trial.config.items() if name not in settings}
        identity = json.dumps([trial.method, trial.dataset, config, trial.budget.limits()], sort_keys=True)
        same[identity][trial.label] = settings
    return [f"{', '.join(names)} on {text}" for text, names in labels.items()] + [
        f"{', '.join(group)} differ only in settings without effect here: {', '.join(sorted(min(group.values())))}"
        for group in same.values()
        if len(group) > 1
    ]


def _of_steps(spent: Mapping[str, Any]) -> Iterator[str]:
    if 0 < (steps := spent.get("steps", 0)) < FEW_STEPS:
        yield f"about {steps:.0f} steps, which are few: lower batch_size or raise the budget"


def _of_texts(trial: Trial, data: Extent) -> Iterator[str]:
    limit = trial.config.get("max_query_length") or data.stated_limit
    if "max_query_length" not in trial.config or limit is None or not data.query_words:
        return
    if (share := share_cut(data.query_words, limit)) > MUCH_CUT:
        yield f"about {share:.0%} of the queries are cut at {limit} tokens (max_query_length)"
