"""The keys of a suite file, with the descriptions that the documentation prints."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from xmcbench.evaluation import DEFAULT_METRICS, ZERO_SHOT_METRICS
from xmcbench.suite.resources import Resources
from xmcbench.suite.tables import TableShape
from xmcbench.suite.tuning import Tune
from xmcbench.trial.budget import Budget
from xmcbench.trial.record_fields import Frozen
from xmcbench.trial.trial import Selection, Track


class SuiteFile(Frozen):
    """The keys of a suite file."""

    name: str = Field(min_length=1, description="name of the suite, stored in its records")
    datasets: list[str] = Field(
        min_length=1, description="names that `xmcbench datasets` lists, or `{name: NAME, option: value}`"
    )
    encoder: str | dict[str, Any] | None = Field(
        None, description="the setting `encoder` of every method that has one: a name, or a mapping"
    )
    seeds: list[int] = Field([0], min_length=1, description="one trial per seed")
    budget: Budget | None = Field(None, description="what training may spend; this or `budgets`")
    budgets: dict[str, Budget] | None = Field(
        None,
        min_length=1,
        description="`name: budget`, one trial per budget; or the name of a YAML file beside the suite that holds them",
    )
    equal: str | None = Field(None, description="the one limit at which every cell must stop")
    methods: dict[str, dict[str, Any]] = Field(
        min_length=1,
        description="`label: {method: NAME, setting: value}`; a `budget` in an entry replaces the suite's",
    )
    settings: dict[str, Any] = Field({}, description="settings of every method that has them; a method's own win")
    sweep: dict[str, list[Any]] = Field({}, description="`setting: [values]`, one trial per combination")
    selection: Selection | None = Field(
        None, description="training queries held out to choose a checkpoint; null: the last weights"
    )
    track: Track = Field("supervised", description="zero-shot hides training annotations from methods")
    metrics: list[str] | None = Field(
        None, min_length=1, description="metrics to compute and to show; null: the defaults of the track"
    )
    tune: Tune | None = Field(None, description="how short trials choose the settings of the methods")
    tables: dict[str, TableShape] = Field({}, description="`title: {columns: [...]}`, tables of a sweep's cells")
    timeout: float = Field(86400, gt=0, description="wall-clock seconds after which a trial is killed")
    resources: Resources = Field(Resources(), description="workers, CPUs and GPUs of a trial; not in its key")

    @property
    def metric_names(self) -> list[str]:
        """The metrics that the file names, else the default metrics of its track."""
        return self.metrics or list(ZERO_SHOT_METRICS if self.track == "zero-shot" else DEFAULT_METRICS)
