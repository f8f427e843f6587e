"""Prompts: those that papers print, by dataset, and one's own, checked for their placeholders.

A template with `{label}` asks about one label, one with `{labels}` about several, which it is given as numbered lines.
"""

from __future__ import annotations

from string import Formatter
from typing import Annotated

from pydantic import AfterValidator

from xmcbench.errors import suggest

# LMTX, Section 5.1; its {doc} and {label_text} are {document} and {label} here.
_TAG = "document = {document}. Is the tag {label} relevant to the document? answer yes or no"
PROMPTS = {
    "eurlex-4k": _TAG,
    "wiki10-31k": _TAG,
    "amazoncat-13k": "document = {document}. The document is amazon product description, "
    "Is the tag {label} relevant to the document? answer yes or no",
    "lf-wikiseealso-320k": "document = {document}. The document is the wikipedia page. "
    'Does another wikipedia page name "{label}" has the relation to the document? answer yes or no',
    "lf-wikipedia-500k": "document = {document}, the document is the wikipedia page. "
    'Is the tag "{label}" relevant to the document? answer yes or no',
    # Not a paper's: several labels in one prompt.
    "several": "document = {document}. Which of these tags are relevant to the document?\n{labels}\n"
    "Answer with one line for each tag: its number, then yes or no.",
}


def template(prompt: str) -> str:
    """The text of a prompt: that of the name, or the template itself."""
    return PROMPTS.get(prompt, prompt)


def takes_several(text: str) -> bool:
    """Whether a template asks about several labels."""
    return "labels" in _placeholders(text)


def _placeholders(text: str) -> list[str]:
    """The names in braces. Raises ValueError for braces that enclose no plain name."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError as problem:
        raise ValueError(f"expected placeholders in braces, {{{{ and }}}} for braces themselves: {problem}") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion):
            raise ValueError(f"expected a plain {{{name}}}, without a format")
    return [name for _, name, _, _ in parts if name is not None]


def _one_label(prompt: str) -> str:
    return _checked(prompt, ("label",))


def _any(prompt: str) -> str:
    return _checked(prompt, ("label", "labels"))


def _checked(prompt: str, forms: tuple[str, ...]) -> str:
    if prompt not in PROMPTS and not any(mark in prompt for mark in "{}"):
        raise ValueError(f"expected a template with placeholders, or the name of a prompt{suggest(prompt, PROMPTS)}")
    used = _placeholders(template(prompt))
    expected = "expected the placeholders {document} and " + " or ".join(f"{{{form}}}" for form in forms)
    for name in used:
        if name not in ("document", *forms):
            raise ValueError(f"{expected}: found {{{name}}}{suggest(name, ('document', *forms))}")
    labels = set(used) & set(forms)
    if "document" not in used or len(labels) != 1:
        raise ValueError(f"{expected}, each in it")
    return prompt


OneLabelPrompt = Annotated[str, AfterValidator(_one_label)]
"""The name of a prompt or a template, that asks about one label."""
Prompt = Annotated[str, AfterValidator(_any)]
"""The name of a prompt or a template, that asks about one label or about several."""
