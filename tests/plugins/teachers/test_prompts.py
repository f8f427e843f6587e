"""Prompts: those of the paper, word for word, and templates checked for their placeholders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from xmcbench.teachers import PROMPTS, OneLabelPrompt, Prompt
from xmcbench.teachers.prompts import has_several_labels, template

one, either = TypeAdapter(OneLabelPrompt), TypeAdapter(Prompt)


def test_prompts_are_those_the_paper_prints(shared: Path) -> None:
    paper = (shared / "papers" / "lmtx.md").read_text(encoding="utf-8")
    appendix = paper[paper.index("5.1 Prompts for LLM") :]
    printed = {}
    for line in appendix.splitlines():
        if found := re.match(r"\W*([\w -]+?): ?[\"“](.*)[\"”]\.?$", line.strip()):
            for name in found[1].split(" and "):
                printed[name.strip().lower()] = (
                    found[2].replace("{doc}", "{document}").replace("{label_text}", "{label}")
                )
    assert len(printed) == 5
    assert printed == {name: text for name, text in PROMPTS.items() if name != "several"}


@pytest.mark.parametrize("name", PROMPTS)
def test_every_prompt_is_a_template(name: str) -> None:
    assert either.validate_python(name) == name
    assert has_several_labels(template(name)) == (name == "several")
    filled = template(name).format(document="D {x}", label="L", labels="1. L")
    assert "D {x}" in filled


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        ("eurlex", r"did you mean 'eurlex-4k'\?"),
        ("{document}", r"found {document} \["),
        ("{label}", r"found {label} \["),
        ("{document} {label} {labels}", r"found {document}, {label}, {labels} \["),
        ("{document} {lable}", r"found {lable} \(did you mean 'label'"),
        ("{doc} {label}", "found {doc}"),
        ("{document} {label:>9}", "without a format"),
        ("{document} {label!r}", "without a format"),
        ("{document} {0} {label}", "found {0}"),
        ("{document} {} {label}", "found {}"),
        ("{document {label}", "placeholders"),
        ("{document} {label}}", "in braces"),
    ],
)
def test_a_template_with_wrong_placeholders_is_refused(prompt: str, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        either.validate_python(prompt)


def test_several_labels_are_for_those_who_can() -> None:
    assert either.validate_python("{labels} of {document}, {{so}}")
    with pytest.raises(ValidationError, match=r"found \{labels\}"):
        one.validate_python("several")
