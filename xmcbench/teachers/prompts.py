"""Prompts: the named ones from papers, by dataset, and validation of user templates.

A template with `{label}` asks about one label. A template with `{labels}` asks about several, as numbered lines.
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
    # Several labels in one prompt; not from a paper.
    "several": "document = {document}. Which of these tags are relevant to the document?\n{labels}\n"
    "Answer with one line for each tag: its number, then yes or no.",
}


def template(prompt: str) -> str:
    """The template with this name, or `prompt` itself if it is a template."""
    return PROMPTS.get(prompt, prompt)


def has_several_labels(text: str) -> bool:
    """Whether a template asks about several labels at once."""
    return "labels" in _placeholders(text)


def _placeholders(text: str) -> list[str]:
    """The names of the placeholders. Raises ValueError for braces that do not enclose a plain name."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError as problem:
        raise ValueError(f"expected placeholders in braces, {{{{ and }}}} for literal braces: {problem}") from None
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
        raise ValueError(f"{expected}, found {', '.join(f'{{{name}}}' for name in used) or 'none'}")
    return prompt


OneLabelPrompt = Annotated[str, AfterValidator(_one_label)]
"""The name of a prompt or a template that asks about one label."""
Prompt = Annotated[str, AfterValidator(_any)]
"""The name of a prompt or a template that asks about one label or several."""
