"""What docs/claims.md says of the papers' claims, and its figure, from `leaderboard/claims.yaml` alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.published import published_rows
from xmcbench_plugins.analysis.plots import PAGE, drawing, legend_below, plain, series
from xmcbench_plugins.board.claims import FINDINGS, Claim, ClaimFile, Column, Question, Regime, read_claims
from xmcbench_plugins.board.curated import dataset_facts

BREAK = "<br>"  # within a cell
IN_EVERY_REGIME = {"Seen": {"seen"}, "Not seen": {"not seen"}, "Undecided": {"undecided"}}


@dataclass(frozen=True)
class Claims:
    """What the document says of the claims."""

    file: ClaimFile
    published: Sequence[PublishedRow]

    @property
    def all(self) -> Sequence[Claim]:
        return self.file.claims

    @property
    def asked(self) -> list[Claim]:
        """Those that any trial was made for."""
        return [own for own in self.all if any(regime.columns for regime in own.regimes)]

    def found(self, *findings: str) -> list[Claim]:
        """Those whose regimes found each of these, and nothing else."""
        return [own for own in self.asked if {one.finding for one in own.regimes if one.columns} == set(findings)]

    @property
    def seeds(self) -> int:
        """Of every setting."""
        return len(next(regime.better_keys for own in self.asked for regime in own.regimes if regime.columns))

    @property
    def summary(self) -> str:
        return "\n".join(summary(self.file))

    @property
    def scales(self) -> str:
        return scales(self.file)

    @property
    def table(self) -> str:
        """A row for each claim."""
        rows = (claim_row(claim, self.published) for claim in self.file.claims)
        return "\n".join(["| claim | metrics | paper | here |", "| --- | --- | --- | --- |", *rows])

    @property
    def questions(self) -> str:
        """A row for each question of our own."""
        return "\n".join(
            ["| question | metrics | here |", "| --- | --- | --- |", *map(question_row, self.file.questions)]
        )

    def draw(self, path: Path) -> None:
        """The figure."""
        forest(self.file.claims, self.published, path)


@cache
def written_claims() -> Claims:
    """Those of `leaderboard/claims.yaml`."""
    return Claims(read_claims(), published_rows())


def scales(file: ClaimFile) -> str:
    """What the trials ran on: labels and encoder, with the datasets."""
    regimes = [regime for claim in file.claims for regime in claim.regimes]
    found = [own.scale for own in (*regimes, *(question.regime for question in file.questions)) if own.scale]
    sizes: dict[str, dict[str, None]] = defaultdict(dict)  # a dict keeps the order
    for own in found:
        sizes[f"{own.labels:,} labels, {own.encoder}"][own.dataset] = None
    texts = "; ".join(f"{size}: {', '.join(datasets)}" for size, datasets in sizes.items())
    return f"Trials: {texts}. Cells hold differences in points, ± half the interval, in the order of the metrics."


def summary(file: ClaimFile) -> Iterator[str]:
    """The lines that matter."""
    regimes = [regime for claim in file.claims for regime in claim.regimes]
    asked = sum(any(own.columns for own in claim.regimes) for claim in file.claims)
    yield f"- We tested **{asked} of {len(file.claims)} claims** in {len(regimes)} attempts: {counted(regimes)}."
    at_scale = sum(bool(regime.columns and regime.scale and regime.scale.papers) for regime in regimes)
    tried = "No attempt was" if not at_scale else "One attempt was" if at_scale == 1 else f"{at_scale} attempts were"
    yield f"- {tried} at a paper's own scale, where a claim can be reproduced or contradicted."
    found = {claim.id: {own.finding for own in claim.regimes if own.columns} for claim in file.claims}
    for title, wanted in IN_EVERY_REGIME.items():
        if ids := [id for id, findings in found.items() if findings == wanted]:
            yield f"- **{title} in every regime**: {links(ids)}."
    if ids := [id for id, findings in found.items() if {"seen", "not seen"} <= findings]:
        yield f"- **Seen in one regime and not in another**: {links(ids)}."
    if ids := [claim.id for claim in file.claims if claim.regimes and not found[claim.id]]:
        yield f"- Not run yet: {links(ids)}."
    needs: dict[str, list[str]] = defaultdict(list)
    for claim in file.claims:
        needs[claim.needs].append(claim.id)
    for needed, ids in needs.items():
        if needed:
            yield f"- Not asked: {links(ids)} ({'these need' if len(ids) > 1 else 'this needs'} {needed})."
    tested = [question for question in file.questions if question.of]
    matter: dict[str, list[str]] = defaultdict(list)
    for own in tested:
        if any(column.sign != "?" for column in own.changes):
            matter[own.question].append(own.of)
    texts = "; ".join(f"{question} ({links(ids)})" for question, ids in matter.items())
    title = f"- **Conditions that change the difference significantly**, of {len(tested)} that were tested"
    yield f"{title}: {texts or 'none'}."
    findings = counted(question.regime for question in file.questions)
    yield f"- We also asked {len(file.questions)} questions of our own: {findings}."


def links(ids: Iterable[str]) -> str:
    """Links to the rows of claims."""
    return ", ".join(f"[{id}](#{id})" for id in ids)


def counted(regimes: Iterable[Regime]) -> str:
    """How often each finding occurs."""
    found = Counter(regime.finding for regime in regimes)
    return ", ".join(f"{found[name]} {name}" for name in FINDINGS if found[name])


def claim_row(claim: Claim, published: Sequence[PublishedRow]) -> str:
    """The row of a claim: what the paper prints on each dataset, and what every regime shows."""
    papers = claim.paper.printed(published)
    printed = [f"{claim.paper.table}{f' ({claim.remark})' if claim.remark else ''}"]
    for name in dict.fromkeys(name for own in papers.values() for name in own):
        printed.append(f"{name} {', '.join(f'{own[name]:+.2f}' if name in own else '-' for own in papers.values())}")
    here = BREAK.join(map(regime_text, claim.regimes)) or "not asked"
    metrics = ", ".join(f"**{name}**" if name == claim.shown else name for name in papers)
    return f'| <a id="{claim.id}"></a>{claim.claim} | {metrics} | {BREAK.join(printed)} | {here} |'


def regime_text(regime: Regime) -> str:
    """What one regime shows, with its dataset and length of training."""
    if not regime.columns or not regime.scale:
        return f"not run yet: `xmcbench run suites/{regime.suite}.yaml`"
    older = f" ({regime.older})" if regime.older else ""
    where = f"{regime.scale.dataset}, {regime.scale.length}{older}"
    return f"*{regime.verdict.removesuffix(' here')}*, {where}: {differences(regime.columns)}"


def differences(columns: Iterable[Column]) -> str:
    """Each difference with half its interval, bold where it is significant."""
    texts = []
    for column in columns:
        low, high = map(float, column.interval)
        text = f"{column.difference}±{(high - low) / 2:.2f}"
        texts.append(text if column.sign == "?" else f"**{text}**")
    return ", ".join(texts)


def question_row(question: Question) -> str:
    """The row of a question: the differences, or by how much those of the claim change."""
    regime, of = question.regime, f"{links([question.of])}, " if question.of else ""
    columns = question.changes if question.of else regime.columns
    said = regime_text(regime)
    if question.of and regime.columns and regime.scale:
        changes = f"change by {differences(columns)}" if columns else "the claim's own regime is not run yet"
        said = f"{regime.scale.dataset}, {regime.scale.length}: {changes}"
    return f"| {of}{question.question} | {', '.join(column.metric for column in columns)} | {said} |"


ROW = 0.3  # inches per claim
MADE = "made data"
LINEAR = 2.0  # points up to which the axis is linear; beyond it is logarithmic
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)


def forest(claims: Sequence[Claim], published: Sequence[PublishedRow], path: Path) -> None:
    """Draw each claim's difference in the metric that it shows. Hollow: not significant; grey: the paper's figures."""
    regimes = [regime for claim in claims for regime in claim.regimes if regime.columns]
    scales = dict.fromkeys(_of_claims(regime.scale.dataset) for regime in regimes if regime.scale)
    datasets = sorted(scales, key=MADE.__eq__)
    with drawing(path, PAGE, 1.2 + ROW * len(claims)) as axes:
        for row, claim in enumerate(claims):
            printed = list(claim.paper.printed(published).get(claim.shown, {}).values())
            axes.plot(printed, [row] * len(printed), "|", color="#999999", markersize=7, zorder=1)
            for regime in claim.regimes:
                column = regime.column(claim.shown)
                if column is None or regime.scale is None:
                    continue
                place = datasets.index(_of_claims(regime.scale.dataset))
                y = row + 0.22 * (place - (len(datasets) - 1) / 2)
                style = {"markersize": 4, "zorder": 3, **series(place)}
                fill = "white" if column.sign == "?" else style["color"]
                low, high = map(float, column.interval)
                axes.plot([low, high], [y, y], color=style["color"], linewidth=1.1, zorder=2)
                axes.plot(float(column.difference), y, linestyle="none", markerfacecolor=fill, **style)
        for place, dataset in enumerate(datasets):
            axes.plot([], [], "-", markersize=4, label=plain(dataset), **series(place))
        axes.plot([], [], "|", color="#999999", label="the paper's figures, at its own scale")
        axes.axvline(0, color="#555555", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=LINEAR)
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.minorticks_off()
        axes.set_yticks(range(len(claims)), [plain(f"{claim.claim} [{claim.shown}]") for claim in claims])
        axes.set(ylim=(len(claims) - 0.4, -0.6), xlabel="difference in points, 95 % interval (hollow: not significant)")
        legend_below(axes, columns=3)


def _of_claims(dataset: str) -> str:
    """All data that are made count as one regime."""
    return MADE if dataset_facts(dataset).made else dataset
