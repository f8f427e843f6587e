"""`docs/claims.md` and its figure, from `leaderboard/claims.yaml` alone: nothing of either is written by hand.

python benchmarks/claims_document.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from xmcbench.files.atomic import atomic_write
from xmcbench.reporting import published_rows
from xmcbench.reporting.claims import FINDINGS, Claim, ClaimFile, Column, Question, Regime, read_claims
from xmcbench.reporting.plots import forest
from xmcbench.reporting.published import PublishedRow

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENT, FIGURE = DOCS / "claims.md", DOCS / "pictures" / "claims.svg"
HEADER = "<!-- Written by benchmarks/claims_document.py. -->\n# Claims of the papers\n"
RULES = """
![A row for each claim, an interval for each regime](pictures/claims.svg)

A claim is that one row of a paper's table beats another. All columns printed for both are compared, in two regimes or
more: made data, and titles of the Tate collection. *Seen*: every column has the paper's sign, significantly; *in part*:
some have; *not seen*: none has, and one has the other sign; *undecided*: none is significant. Columns whose sign
differs between the paper's datasets do not count. *Reproduced* and *contradicted* are kept for the paper's dataset,
encoder and length of training.

Claims, settings, seeds (five) and metrics stood in `benchmarks/claims.yaml` before the trials ran. Intervals are over
queries and seeds ([the rule](analysis.md#when-two-configurations-differ)). Bold: significant after Holm's correction
for all claims and regimes of a metric. Two rates were tuned on held-out queries, no other setting: that of the
one-vs-all classifier's rows and the static encoder's.

```sh
python benchmarks/claims.py --data DIRECTORY && python benchmarks/claims_document.py
```

## Every claim"""
IN_EVERY_REGIME = {"Seen": {"seen"}, "Not seen": {"not seen"}, "Undecided": {"undecided"}}


def document(file: ClaimFile, published: Sequence[PublishedRow]) -> str:
    """The whole document."""
    lines = [HEADER, *summary(file), RULES, *(details(claim, published) for claim in file.claims)]
    return "\n".join([*lines, "", "## Our own questions", "", *map(answer, file.questions)]).rstrip() + "\n"


def summary(file: ClaimFile) -> Iterator[str]:
    """The lines that matter."""
    regimes = [regime for claim in file.claims for regime in claim.regimes]
    yield f"- **{len(file.claims)} claims in {len(regimes)} attempts**: {counted(regimes)}."
    at_scale = sum(bool(regime.columns and regime.scale and regime.scale.papers) for regime in regimes)
    yield f"- Attempts at a paper's own scale, where a claim can be reproduced or contradicted: {at_scale or 'none'}."
    found = {claim.id: {own.finding for own in claim.regimes if own.columns} for claim in file.claims}
    for title, wanted in IN_EVERY_REGIME.items():
        if ids := [id for id, findings in found.items() if findings == wanted]:
            yield f"- **{title} in every regime**: {links(ids)}."
    if ids := [id for id, findings in found.items() if {"seen", "not seen"} <= findings]:
        yield f"- **The regimes contradict each other**: {links(ids)}."
    if ids := [claim.id for claim in file.claims if claim.regimes and not found[claim.id]]:
        yield f"- Not run yet: {links(ids)}."
    needs: dict[str, list[str]] = defaultdict(list)
    for claim in file.claims:
        needs[claim.needs].append(claim.id)
    for needed, ids in needs.items():
        if needed:
            yield f"- Not asked: {links(ids)} ({'these need' if len(ids) > 1 else 'this needs'} {needed})."
    tested = [question for question in file.questions if question.of]
    matter = [f"{own.question} ({links([own.of])})" for own in tested if any(c.sign != "?" for c in own.changes)]
    yield f"- **Reasons that were tested alone and matter**: {'; '.join(matter) or 'none'} ({len(tested)} tests)."
    findings = counted(question.regime for question in file.questions)
    yield f"- Apart from the claims, {len(file.questions)} questions of our own: {findings}."


def links(ids: Iterable[str]) -> str:
    """Links to the paragraphs of claims."""
    return ", ".join(f"[{id}](#{id})" for id in ids)


def counted(regimes: Iterable[Regime]) -> str:
    """How often each finding occurs."""
    found = Counter(regime.finding for regime in regimes)
    return ", ".join(f"{found[name]} {name}" for name in FINDINGS if found[name])


def details(claim: Claim, published: Sequence[PublishedRow]) -> str:
    """One folded paragraph: what the paper prints and what every regime shows."""
    papers = claim.paper.printed(published)
    datasets = list(dict.fromkeys(name for own in papers.values() for name in own))
    columns = [[f"{own[name]:+.2f}" if name in own else "-" for name in datasets] for own in papers.values()]
    remark, printed = f"; {claim.remark}" if claim.remark else "", ", ".join(map("/".join, columns))
    parts = [f"{claim.paper.table} ({'/'.join(datasets)}{remark}), {'/'.join(papers)}: {printed}."]
    parts += [f"{regime_text(regime)}." for regime in claim.regimes]
    parts += [f"Needs {claim.needs}."] if claim.needs else []
    verdicts = ", ".join(regime.finding for regime in claim.regimes) or "not asked"
    return f'\n<details id="{claim.id}"><summary>{claim.claim}: {verdicts}</summary><p>{" ".join(parts)}</p></details>'


def regime_text(regime: Regime) -> str:
    """What one regime shows, with its scale."""
    if not regime.columns:
        return f"Not run yet: <code>xmcbench run suites/{regime.suite}.yaml</code>"
    older = f" ({regime.older})" if regime.older else ""
    return f"<em>{regime.verdict.capitalize()}</em>, {regime.scale}{older}: {differences(regime.columns)}"


def differences(columns: Iterable[Column]) -> str:
    """Each difference with half its interval, bold where it is significant."""
    texts = []
    for column in columns:
        low, high = map(float, column.interval)
        text = f"{column.difference}±{(high - low) / 2:.2f}"
        texts.append(text if column.sign == "?" else f"<b>{text}</b>")
    return ", ".join(texts)


def answer(question: Question) -> str:
    """The line of a question: the differences, or by how much those of the claim change."""
    regime, of = question.regime, f"{links([question.of])}, " if question.of else ""
    if not regime.columns:
        said = f"not run yet (`suites/{regime.suite}.yaml`)"
    elif not question.of:
        said = f"{', '.join(column.metric for column in regime.columns)}: {regime_text(regime)}"
    elif question.changes:
        names = "/".join(column.metric for column in question.changes)
        said = f"changes its {names} by {differences(question.changes)} ({regime.scale})"
    else:
        said = "the claim's own regime is not run yet"
    return f"- {of}{question.question}: {said}."


if __name__ == "__main__":
    with atomic_write(DOCUMENT) as out:
        out.write(document(claims := read_claims(), rows := published_rows()).encode())
    forest(claims.claims, rows, FIGURE)
    print(f"{DOCUMENT}, {FIGURE}")
