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
from xmcbench.reporting.published import PublishedRow

ROOT = Path(__file__).parents[1]
DOCUMENT, FIGURE = ROOT / "docs" / "claims.md", ROOT / "docs" / "pictures" / "claims.svg"
HEADER = "<!-- Written by benchmarks/claims_document.py. -->\n# Claims of the papers\n"
RULES = """
A claim is that one row of a paper's table beats another. All columns printed for both are compared, in two regimes or
more: made data, and titles of the Tate collection. *Seen*: every column has the paper's sign, significantly; *in part*:
some have; *not seen*: none has, and one has the other sign; *undecided*: none is significant. Columns whose sign
differs between the paper's datasets do not count. *Reproduced* and *contradicted* are kept for the paper's dataset,
encoder and length of training.

Claims, settings, seeds (five) and metrics stood in `benchmarks/claims.yaml` before the trials ran. Intervals are over
queries and seeds ([the rule](analysis.md#when-two-configurations-differ)). Bold: significant after Holm's correction
for all claims and regimes of a metric. Two rates were tuned on held-out queries, no other setting: that of the
one-vs-all classifier's rows and the static encoder's.
"""


def document(file: ClaimFile, published: Sequence[PublishedRow]) -> str:
    """The whole document."""
    lines = [
        HEADER,
        *summary(file),
        "",
        f"![A row for each claim, an interval for each regime](pictures/{FIGURE.name})",
    ]
    lines += [
        RULES,
        "```sh",
        "python benchmarks/claims.py --data DIRECTORY && python benchmarks/claims_document.py",
        "```",
    ]
    lines += ["", "## Every claim", *(details(claim, published) for claim in file.claims)]
    return "\n".join([*lines, "", "## Our own questions", "", *answers(file)]).rstrip() + "\n"


def summary(file: ClaimFile) -> Iterator[str]:
    """The lines that matter."""
    regimes = [regime for claim in file.claims for regime in claim.regimes]
    yield f"- **{len(file.claims)} claims in {len(regimes)} attempts**: {counted(regimes)}."
    at_scale = sum(bool(regime.columns and regime.scale and regime.scale.papers) for regime in regimes)
    yield f"- Attempts at a paper's own scale, where a claim can be reproduced or contradicted: {at_scale or 'none'}."
    ran = {claim.id: [regime for regime in claim.regimes if regime.columns] for claim in file.claims}
    several = {id: {regime.finding for regime in own} for id, own in ran.items() if len(own) > 1}
    names = {claim.id: link(claim.id) for claim in file.claims}
    for title, wanted in (("Seen", {"seen"}), ("Not seen", {"not seen"}), ("Undecided", {"undecided"})):
        if found := [names[id] for id, findings in several.items() if findings == wanted]:
            yield f"- **{title} in every regime**: {', '.join(found)}."
    if found := [names[id] for id, findings in several.items() if {"seen", "not seen"} <= findings]:
        yield f"- **The regimes contradict each other**: {', '.join(found)}."
    for title, wanted in (
        ("Seen", "seen"),
        ("Seen in part", "seen in part"),
        ("Not seen", "not seen"),
        ("Undecided", "undecided"),
    ):
        single = [names[id] for id, own in ran.items() if len(own) == 1 and own[0].finding == wanted]
        if single:
            yield f"- {title} in the one regime that ran: {', '.join(single)}."
    if waiting := [names[claim.id] for claim in file.claims if claim.regimes and not ran[claim.id]]:
        yield f"- Not run yet: {', '.join(waiting)}."
    needs: dict[str, list[str]] = defaultdict(list)
    for claim in file.claims:
        if claim.needs:
            needs[claim.needs].append(names[claim.id])
    for needed, own in needs.items():
        yield f"- Not asked: {', '.join(own)} ({'these need' if len(own) > 1 else 'this needs'} {needed})."
    changed = [question for question in file.questions if any(own.sign != "?" for own in question.changes)]
    asked = sum(bool(question.of) for question in file.questions)
    reasons = "; ".join(f"{own.question} ({names[own.of]})" for own in changed)
    yield f"- **Reasons that were tested alone and matter**: {reasons or 'none'} ({asked} tests)."
    findings = counted(question.regime for question in file.questions)
    yield f"- Apart from the claims, {len(file.questions)} questions of our own: {findings}."


def link(id: str) -> str:
    """A link to the paragraph of a claim."""
    return f"[{id}](#{id})"


def counted(regimes: Iterable[Regime]) -> str:
    """How often each finding occurs."""
    found = Counter(regime.finding for regime in regimes)
    return ", ".join(f"{found[name]} {name}" for name in FINDINGS if found[name])


def details(claim: Claim, published: Sequence[PublishedRow]) -> str:
    """One folded paragraph: what the paper prints and what every regime shows."""
    papers = claim.paper.printed(published)
    datasets = list(dict.fromkeys(name for own in papers.values() for name in own))
    printed = ", ".join(
        "/".join(f"{own[name]:+.2f}" if name in own else "-" for name in datasets) for own in papers.values()
    )
    remark = f"; {claim.remark}" if claim.remark else ""
    parts = [f"{claim.paper.table} ({'/'.join(datasets)}{remark}), {'/'.join(papers)}: {printed}."]
    parts += [f"{regime_text(regime)}." for regime in claim.regimes]
    verdicts = ", ".join(regime.finding for regime in claim.regimes) or "not asked"
    if claim.needs:
        parts.append(f"Needs {claim.needs}.")
    return f'\n<details id="{claim.id}"><summary>{claim.claim}: {verdicts}</summary><p>{" ".join(parts)}</p></details>'


def regime_text(regime: Regime) -> str:
    """What one regime shows, with its scale."""
    if not regime.columns:
        return f"Not run yet: <code>xmcbench run suites/{regime.suite}.yaml</code>"
    older = f" ({regime.older})" if regime.older else ""
    return (
        f"<em>{regime.verdict.capitalize()}</em>, {regime.scale}{older}: {', '.join(map(difference, regime.columns))}"
    )


def difference(column: Column) -> str:
    """A difference with half its interval, bold where it is significant."""
    low, high = map(float, column.interval)
    text = f"{column.difference}±{(high - low) / 2:.2f}"
    return f"<b>{text}</b>" if column.sign != "?" else text


def answers(file: ClaimFile) -> Iterator[str]:
    """A line for each question."""
    for question in file.questions:
        of = f"{link(question.of)}, " if question.of else ""
        yield f"- {of}{question.question}: {answer(question)}"


def answer(question: Question) -> str:
    """The differences, or by how much those of the claim change."""
    regime = question.regime
    if not regime.columns:
        return f"not run yet (`suites/{regime.suite}.yaml`)."
    if not question.of:
        return f"{', '.join(column.metric for column in regime.columns)}: {regime_text(regime)}."
    if not question.changes:
        return "the claim's own regime is not run yet."
    names = "/".join(column.metric for column in question.changes)
    return f"changes its {names} by {', '.join(map(difference, question.changes))} ({regime.scale})."


def main() -> None:
    from xmcbench.reporting.plots import forest

    file, published = read_claims(), published_rows()
    with atomic_write(DOCUMENT) as out:
        out.write(document(file, published).encode())
    forest(file.claims, published, FIGURE)
    print(f"{DOCUMENT}, {FIGURE}")


if __name__ == "__main__":
    main()
