"""What a model wrote is yes, no, or neither; never a guess."""

from __future__ import annotations

import pytest

from xmcbench.teachers import NO, UNPARSED, YES
from xmcbench.teachers.prompts import read_answer, read_answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("yes", YES),
        ("Yes, it is. There is no doubt.", YES),
        ("  \n**No.**", NO),
        ("NO", NO),
        ('"yes"', YES),
        ("Answer: no", NO),
        ("The answer is yes.", YES),
        ("<think>yes? no?</think>\nNo", NO),
        ("<think>yes, because", UNPARSED),
        ("", UNPARSED),
        ("not relevant", UNPARSED),
        ("Nothing", UNPARSED),
        ("yesterday", UNPARSED),
        ("yes or no", UNPARSED),
        ("Yes/No", UNPARSED),
        ("I would say yes", UNPARSED),
        ("There is no relation", UNPARSED),
        ("It names a red hat.\n\n**Yes**", YES),
        ("It names no hat, so the answer is: no.", NO),
        ("Is it? The answer is yes or no", UNPARSED),
        ("<think>yes</think>It names no shoe, but it names the hat. Yes", YES),
        ("<think>yes</think>No shoe, but the hat: **Yes.**", YES),
        ("<think>no</think>Yes, since there is no doubt", YES),
        ("<think>no</think>So yes, it names the hat", YES),
        ("<think>yes</think>There is no relation", UNPARSED),
        ("<think>yes</think>Is it yes or no?", UNPARSED),
        ("<think>yes</think>", UNPARSED),
        ("the chat template has opened the thoughts: yes</think>\n\nno", NO),
        ("<thinking>yes</thinking>no", NO),
        ("[THINK]yes[/THINK]no", NO),
        ("<seed:think>yes</seed:think>no", NO),
        ("是", UNPARSED),
    ],
)
def test_one_answer(text: str, answer: int) -> None:
    assert read_answer(text) == answer


def test_thoughts_that_a_server_keeps_apart_are_thoughts() -> None:
    assert read_answer("No shoe, but a hat. Yes", thought=True) == YES
    assert read_answer("No shoe, but a hat. Yes") == NO


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("1. yes\n2. no\n3. yes", (YES, NO, YES)),
        ("1: Yes 2: NO 3 - yes", (YES, NO, YES)),
        ("3) no\n1) yes", (YES, UNPARSED, NO)),
        ("1. yes\n2.", (YES, UNPARSED, UNPARSED)),
        ("1. yes\n1. no\n2. yes", (UNPARSED, YES, UNPARSED)),
        ("1. yes\n4. yes\n0. no", (YES, UNPARSED, UNPARSED)),
        ("1. yes or no", (UNPARSED,) * 3),
        ("yes\nno\nyes", (UNPARSED,) * 3),
        ("", (UNPARSED,) * 3),
        ("<think>1. no</think>1. **yes**", (YES, UNPARSED, UNPARSED)),
        ("<think>1. no 2. yes", (UNPARSED,) * 3),
    ],
)
def test_several_answers(text: str, answers: tuple[int, ...]) -> None:
    assert tuple(read_answers(text, 3)) == answers
