"""The local language model: its yes and no are the probabilities that a computation by hand finds."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from xmcbench.files.pretrained import UnfitModelError
from xmcbench.teachers import PROMPTS, Pairs, TeacherError
from xmcbench_plugins.teachers.causal_model import CausalModel

from .desk import DOCUMENTS, LABELS, Desk, every_pair

TEMPLATE = "document = {document}. Is {label} relevant? yes or no"


def causal_model(folder: Path, **settings: Any) -> CausalModel:
    told = {"name": "transformers", "model": str(folder), "prompt": TEMPLATE, "device": "cpu"} | settings
    return CausalModel(CausalModel.Config.model_validate(told))


def by_hand(folder: Path, chat: bool, document: str, label: str) -> tuple[float, float, int]:
    """P(yes) and P(no) after a prompt alone in its batch, token by token, and the tokens of the prompt."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = f"document = {document}. Is {label} relevant? yes or no"
    prompt = tokenizer(f"<s>user: {text}\nassistant: " if chat else text, add_special_tokens=False)["input_ids"]
    found = []
    for spellings in (("yes", "Yes"), ("no", "No")):
        total = 0.0
        for spelling in spellings:
            ids, probability = list(prompt), 1.0
            for token in tokenizer(spelling if chat else " " + spelling)["input_ids"]:
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
                probability *= float(logits.softmax(0)[token])
                ids.append(token)
            total += probability
        found.append(total)
    return found[0], found[1], len(prompt)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("batch_tokens", [1, 300])
def test_yes_and_no_are_as_probable_as_by_hand(
    chat: bool, batch_tokens: int, chat_model: Path, plain_model: Path
) -> None:
    folder = chat_model if chat else plain_model
    teacher = causal_model(folder, batch_tokens=batch_tokens)
    labels = ["hat", "a much longer label than the other", "x"]
    documents, ids = [DOCUMENTS[3], DOCUMENTS[7]], np.array([0, 0, 0, 1, 1, 1])
    pairs = Pairs([documents[i] for i in ids], labels * 2, ids, np.tile(np.arange(3), 2))
    answered = list(teacher.ask(pairs))
    assert sorted(np.concatenate([part.places for part in answered])) == list(range(6))
    assert len(answered) == (6 if batch_tokens == 1 else len(answered))
    for part in answered:
        for i, place in enumerate(part.places):
            yes, no, tokens = by_hand(folder, chat, pairs.documents[place], pairs.labels[place])
            assert part.answers[i] == int(yes > no)
            assert part.confidence[i] == pytest.approx(max(yes, no) / (yes + no), rel=1e-4)
            assert (part.prompt_tokens[i], part.completion_tokens[i]) == (tokens, 0)


def test_log_probabilities_equal_those_by_hand(plain_model: Path) -> None:
    teacher = causal_model(plain_model)
    pairs = Pairs([DOCUMENTS[0]] * 2, ["hat", "red and blue"], np.zeros(2, np.int64), np.arange(2))
    log_yes, log_no = teacher.log_probabilities(teacher._prompts(pairs))
    for i in range(2):
        yes, no, _ = by_hand(plain_model, False, pairs.documents[i], pairs.labels[i])
        assert log_yes[i] == pytest.approx(math.log(yes), rel=1e-5)
        assert log_no[i] == pytest.approx(math.log(no), rel=1e-5)


def test_spellings_of_one_and_of_several_tokens_are_both_there(chat_model: Path, plain_model: Path) -> None:
    """Or the tests above would show less than they say."""
    assert {len(ids) for ids in causal_model(chat_model)._spelling_ids(("yes", "no"))} == {1}
    assert min(len(ids) for ids in causal_model(plain_model)._spelling_ids(("yes", "no"))) > 1


def test_it_says_yes_and_no(chat_model: Path, tmp_path: Path) -> None:
    found = Desk(tmp_path).judge(causal_model(chat_model))(*every_pair())
    assert set(found.answers.tolist()) == {0, 1}
    assert np.all((found.confidence >= 0.5) & (found.confidence <= 1))


def test_a_document_is_cut_at_its_tokens_as_they_stand(chat_model: Path) -> None:
    teacher = causal_model(chat_model, document_tokens=5)
    document = "red  hat, BLUE shoe and so on"
    ids = teacher._tokenizer(document, add_special_tokens=False)["input_ids"]
    cut = teacher._cut(document)
    assert document.startswith(cut)
    assert teacher._tokenizer(cut, add_special_tokens=False)["input_ids"] == ids[:5]
    assert causal_model(chat_model, document_tokens=430)._cut(document) == document


def test_the_same_model_elsewhere_is_the_same_teacher_and_another_is_not(
    chat_model: Path, plain_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in chat_model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    one = causal_model(chat_model, batch_tokens=7).identity()
    assert causal_model(copy).identity() == one
    assert causal_model(plain_model).identity() != one
    assert causal_model(chat_model, dtype="bfloat16").identity() != one
    assert str(chat_model) not in str(one)


def test_a_model_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"^teacher transformers no/model: 'no/model': no such folder; [^\n]*$"):
        Desk(tmp_path).judge(causal_model(Path("no/model")))(np.array([0]), np.array([0]))


def test_a_model_without_a_head_for_words_judges_nothing(tmp_path: Path, small_encoder: str) -> None:
    """An encoder would get a random head, whose answers would rank on the zero-shot track."""
    told = r"of its weights are not in its files, first 'cls.predictions[^\n]*: expected a causal language model"
    with pytest.raises(TeacherError, match=told):
        Desk(tmp_path).judge(causal_model(Path(small_encoder)))(np.array([0]), np.array([0]))


def zeros(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights = {key: torch.zeros_like(value) for key, value in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        (zeros, "gives all words the same probability, or none: expected the weights of a trained model"),
        (lambda folder: (folder / "model.safetensors").unlink(), "found no model.safetensors in the folder"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not a valid JSON file"),
    ],
)
def test_a_broken_folder_is_told_before_anything_is_planned(
    chat_model: Path, tmp_path: Path, breaks: Callable[[Path], object], reason: str
) -> None:
    causal_model(chat_model).check_machine()
    folder = Path(shutil.copytree(chat_model, tmp_path / "mine"))
    breaks(folder)
    with pytest.raises(UnfitModelError, match=reason) as caught:
        causal_model(folder).check_machine()
    assert "\n" not in str(caught.value)
    with pytest.raises(TeacherError, match=reason):
        Desk(tmp_path).judge(causal_model(folder))(np.array([0]), np.array([0]))


def test_prompts_of_the_same_bytes_share_their_answers(chat_model: Path, tmp_path: Path) -> None:
    """A limit of tokens that cuts no document changes no prompt."""
    pairs = every_pair()
    long, longer, short = (causal_model(chat_model, document_tokens=limit) for limit in (300, 400, 3))
    first = Desk(tmp_path).judge(long)(*pairs)
    desk = Desk(tmp_path)
    assert np.array_equal(desk.judge(longer)(*pairs).answers, first.answers)
    assert desk.ledger.teacher_cached == desk.ledger.teacher_calls == len(pairs[0])
    assert "_model" not in vars(longer)  # nothing was left to ask
    desk = Desk(tmp_path)
    desk.judge(short)(*pairs)
    assert desk.ledger.teacher_cached < desk.ledger.teacher_calls


def test_a_model_that_reads_ahead_judges_nothing(tmp_path: Path, small_encoder: str) -> None:
    """A masked model has a head for words; its answer at a word depends on the words after it."""
    from transformers import BertConfig, BertForMaskedLM

    shutil.copytree(small_encoder, tmp_path / "masked")
    config = BertConfig.from_pretrained(small_encoder)
    model = BertForMaskedLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)  # as large as trained weights
    model.save_pretrained(tmp_path / "masked")
    with pytest.raises(TeacherError, match=r"masked' reads the words after the one that it predicts \(bert\)"):
        Desk(tmp_path).judge(causal_model(tmp_path / "masked"))(np.array([0]), np.array([0]))


def test_the_papers_prompts_are_whole(chat_model: Path) -> None:
    names = ("eurlex-4k", "wiki10-31k", "amazoncat-13k", "lf-wikiseealso-320k", "lf-wikipedia-500k")
    for name in names:
        teacher = causal_model(chat_model, prompt=name)
        text = teacher.template.format(document="THE DOCUMENT", label=LABELS[0])
        assert text.startswith("document = THE DOCUMENT")
        assert text.endswith("answer yes or no")
        assert teacher.template == PROMPTS[name]
