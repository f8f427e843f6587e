"""A suite, read and checked: the methods, datasets, seeds and budgets to compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from xmcbench.data import dataset_name
from xmcbench.data.extent import Extent
from xmcbench.errors import UnknownNameError
from xmcbench.files.yaml_lines import Problems, YamlDocument, read, validate
from xmcbench.plugins.registry import registry
from xmcbench.suite import overrides
from xmcbench.suite.checks import check_equal, check_methods, check_names, check_track
from xmcbench.suite.expansion import Expansion, Variant
from xmcbench.suite.resources import Needs, Share
from xmcbench.suite.schema import SuiteFile
from xmcbench.trial.trial import Trial, flatten
from xmcbench.trial.versions import harness_versions

MAX_TRIALS = 100_000
Extents = Mapping[str, Extent | None]  # by dataset
BUNDLED = Path(__file__).parent / "bundled"  # the suites: in a clone a symbolic link to suites/, in a wheel their copy


class Suite(SuiteFile):
    """A suite file in which every name exists and every value has the right type, and what it expands to."""

    metrics: list[str]
    variants: list[Variant]

    def trials(self, hashes: Mapping[str, str], extents: Extents = MappingProxyType({})) -> list[Trial]:
        """Every variant with every seed on every dataset, with the datasets' content hashes.

        Settings that the suite does not say follow the datasets' `extents`, where these are known.
        """
        metric = self.selection.metric if self.selection else None
        return [
            Trial(
                label=variant.label,
                method=variant.method.name,
                distribution=variant.method.origin.distribution,
                version=variant.method.origin.version,
                versions={**variant.versions, **harness_versions(metric, variant.budget.spending())},
                config=config,
                dataset=dataset,
                dataset_hash=hashes[dataset],
                seed=seed,
                budget=variant.budget,
                selection=self.selection,
                track=self.track,
            )
            for dataset in self.datasets
            for variant in self.variants
            for config in [variant.config_for(extents.get(dataset))]
            for seed in self.seeds
        ]

    def followed(self, trials: Iterable[Trial]) -> list[str]:
        """A line for each set of settings that are derived from data and budget, with the trials that have it."""
        plain = {variant.label: dict(flatten(variant.config)) for variant in self.variants}
        labels: dict[tuple[str, str], dict[str, None]] = {}
        for trial in trials:
            before = plain[trial.label]
            differing = [(name, value) for name, value in flatten(trial.config) if before.get(name, ...) != value]
            if text := ", ".join(f"{name} {json.dumps(value)}" for name, value in differing):
                labels.setdefault((trial.dataset, text), {})[trial.label] = None
        return [f"{', '.join(names)} on {dataset}: {text}" for (dataset, text), names in labels.items()]

    def needs(self, trial: Trial, share: Share) -> Needs:
        """The resources of a trial; `share` comes before the suite's. A method for one worker, and a refit, has one."""
        needs, method = self.resources.of(trial, share), registry().method(trial.method).thing
        if needs.gpus is None and not method.uses_gpu:
            needs = replace(needs, gpus=0.0)
        alone = not method.many_workers or (trial.selection is not None and trial.selection.refit)
        return needs if not alone else replace(needs, workers=1, min_workers=1)


def load_suite(
    path: Path,
    data_dir: Path,
    sets: Sequence[str] = (),
    datasets: Sequence[str] = (),
    encoder: str | None = None,
    on_disk: bool = True,
    allow: bool = False,
) -> Suite:
    """Read a suite file and apply the command line's overrides. One error lists every problem, a line each.

    `path` is a file, or the name of a bundled suite, as `quickstart` or `real/evidence`. A dataset whose
    files are missing is a problem unless `on_disk` is False.
    """
    path = _file_of(path)
    document = read(path)
    overrides.include(document, "budgets", path.parent)
    for setting in sets:
        overrides.override(document, setting, SuiteFile.model_fields)
    if datasets:
        overrides.put(document, ("datasets",), list(datasets), "--dataset")
    if encoder is not None:
        overrides.put_encoder(document, encoder)
    if allow:
        overrides.allow_incomplete(document)
    problems = Problems(document)
    _name_datasets(document, problems)
    file = validate(SuiteFile, document.data, (), {}, problems)
    problems.check()
    assert file is not None
    check_names(file, data_dir, problems, on_disk)
    expansion = Expansion(file, problems)
    if len(expansion.methods) == len(file.methods):
        check_methods(file, expansion, problems)
    variants = expansion.variants()
    if (trials := len(file.datasets) * len(variants) * len(file.seeds)) > MAX_TRIALS:
        problems.add((), f"found {trials:,} trials, expected at most {MAX_TRIALS:,}")
    check_equal(file, variants, problems)
    check_track(file, variants, problems)
    problems.check()
    return Suite.model_construct(**{**dict(file), "metrics": file.metric_names}, variants=variants)


def _file_of(path: Path) -> Path:
    """The suite file that a path or a name means. Raises `UnknownNameError` if a name without ending means none."""
    bundled = BUNDLED / f"{path}.yaml"
    if bundled.is_file() and not path.exists():
        return bundled
    if path.suffix or path.exists():
        return path
    raise UnknownNameError("suite", str(path), bundled_names())


def bundled_names() -> list[str]:
    """The names of the bundled suites, sorted, as `quickstart` or `real/evidence`."""
    return sorted(path.relative_to(BUNDLED).with_suffix("").as_posix() for path in BUNDLED.rglob("*.yaml"))


def _name_datasets(document: YamlDocument, problems: Problems) -> None:
    """Replace datasets that are given as a mapping of a name and options by their names."""
    entries = document.data.get("datasets")
    for i, entry in enumerate(entries if isinstance(entries, list) else []):
        if isinstance(entry, dict):
            document.data["datasets"][i] = problems.note(("datasets", i), dataset_name, entry) or str(entry)
