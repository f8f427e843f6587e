"""A folder of sentence-transformers embeds as that library does, from its own modules, and is saved so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy import make_run, toy_data

from engine.encoders.test_sentence_layout import Plain
from xmcbench.engine.encoders.encoder import embed_all
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.errors import XMCBenchError

DATA = toy_data()
LENGTH = 9
PROMPTS = {"query": "ba be: ", "document": "do: "}
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
DENSE: dict[str, Any] = {"out_features": 7, "activation_function": torch.nn.GELU()}


def saved(encoder: str, directory: Path, *modes: str, dense: dict[str, Any] | None = None, unit: bool = False) -> str:
    """A folder that sentence-transformers saved."""
    library = pytest.importorskip("sentence_transformers")
    kinds = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    modules = [kinds.Transformer(encoder, max_seq_length=LENGTH)]
    modules.append(kinds.Pooling(32, modes if len(modes) > 1 else modes[0]))
    if dense:
        torch.manual_seed(0)
        modules.append(kinds.Dense(in_features=32 * len(modes), **dense))
    modules += [kinds.Normalize()] if unit else []
    library.SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS).save(str(directory))
    return str(directory)


def vectors(encoder: TransformerEncoder, *, labels: bool = False) -> np.ndarray:
    tokenizer, texts = (encoder.label_tokenizer, DATA.label_texts) if labels else (encoder.tokenizer, DATA.texts)
    tokens = tokenizer.tokens(texts, LENGTH)
    return embed_all(encoder, tokens, precision="float32", micro_batch_tokens=100).numpy()


def own(folder: str, **settings: Any) -> TransformerEncoder:
    config = EncoderConfig.model_validate({"name": folder, "pooling": "own", "normalize": False, **settings})
    return TransformerEncoder.build(config, [], 0, Path())


@pytest.mark.parametrize("modes", [*([mode] for mode in MODES), ["cls", "mean"]], ids="+".join)
@pytest.mark.parametrize("more", [{}, {"dense": DENSE, "unit": True}], ids=["pooling", "dense, normalise"])
def test_texts_are_embedded_as_the_library_does(
    modes: list[str], more: dict[str, Any], small_encoder: str, tmp_path: Path
) -> None:
    folder = saved(small_encoder, tmp_path, *modes, **more)
    encoder = own(folder)
    opened = pytest.importorskip("sentence_transformers").SentenceTransformer(folder, device="cpu")
    for labels, embed in ((False, opened.encode_query), (True, opened.encode_document)):
        wanted = embed(list(DATA.label_texts if labels else DATA.texts), show_progress_bar=False)
        np.testing.assert_allclose(vectors(encoder, labels=labels), wanted, rtol=1e-4, atol=1e-5)
    assert TransformerEncoder.prompts_of(encoder.config) == encoder.prompts == PROMPTS


def test_a_trained_one_is_saved_loaded_and_opened_by_the_library(small_encoder: str, tmp_path: Path) -> None:
    folder = saved(small_encoder, tmp_path / "folder", "mean", dense=DENSE)
    method = Plain(Plain.Config.model_validate({
        "encoder": {"name": folder, "pooling": "own"}, "batch_size": 20, "learning_rate": 1e-2,
        "max_query_length": LENGTH, "max_label_length": LENGTH,
    }))  # fmt: skip
    before = own(folder).own.state_dict()
    method.fit(DATA, make_run(tmp_path, {"steps": 3}))
    after = method.encoder.own.state_dict()
    assert not torch.equal(before["layers.1.linear.weight"], after["layers.1.linear.weight"])
    (tmp_path / "model").mkdir()
    method.save(tmp_path / "model")
    again = Plain(method.config)
    again.load(tmp_path / "model")
    assert np.array_equal(again.predict(DATA.texts, 5).scores, method.predict(DATA.texts, 5).scores)
    opened = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tmp_path / "model"), device="cpu")
    labels = opened.encode_document(list(DATA.label_texts), show_progress_bar=False)
    np.testing.assert_allclose(labels, method.index_LD.numpy(), rtol=0, atol=1e-5)
    queries = opened.encode_query(list(DATA.texts), show_progress_bar=False)
    np.testing.assert_allclose(queries, vectors(method.encoder), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        (
            "modules.json",
            lambda c: c.insert(2, {"type": "sentence_transformers.models.LSTM", "path": "2_LSTM"}),
            "LSTM",
        ),
        ("modules.json", lambda c: c.append({"type": "custom.Layer", "path": ""}), "'custom.Layer' is not of sentence"),
        ("modules.json", lambda c: c.pop(1), "'Dense' is not known here: expected Pooling"),
        ("1_Pooling/config.json", lambda c: c.update(pooling_mode="men"), r"unknown pooling 'men' \(did you mean 'm"),
        ("1_Pooling/config.json", lambda c: c.update(include_prompt=False), "without the prompt"),
        ("2_Dense/config.json", lambda c: c.update(activation_function="os.system"), "'os.system' is not one of torch"),
        ("2_Dense/config.json", lambda c: c.update(use_residual=True), "residual"),
        ("2_Dense/config.json", lambda c: c.update(out_features=9), "size mismatch"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(
    file: str, change: Any, told: str, small_encoder: str, tmp_path: Path
) -> None:
    folder = saved(small_encoder, tmp_path, "mean", dense=DENSE)
    content = json.loads((tmp_path / file).read_text())
    change(content)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(XMCBenchError, match=told) as caught:
        own(folder)
    assert "\n" not in str(caught.value)


def test_a_note_names_what_is_not_used(small_encoder: str, tmp_path: Path) -> None:
    def notes(folder: str, **settings: Any) -> list[str]:
        return Plain(Plain.Config.model_validate({"encoder": {"name": folder, **settings}})).notes()

    given = {"query_prefix": "mine: ", "label_prefix": "mine: "}
    folder = saved(small_encoder, tmp_path / "dense", "max", dense=DENSE)
    told = f"encoder {folder!r}: {{}} of its folder are not used: pooling: own takes them"
    assert notes(folder) == [told.format("the pooling max and the layers Dense and the prompts 'ba be: ', 'do: '")]
    assert notes(folder, **given) == [told.format("the pooling max and the layers Dense")]
    assert not notes(folder, pooling="own")
    assert not notes(small_encoder)
    plain = saved(small_encoder, tmp_path / "plain", "mean", unit=True)
    assert not notes(plain, **given)
    assert "the pooling mean of its folder" in notes(plain, pooling="cls", **given)[0]


def test_a_folder_of_transformers_has_no_modules_of_its_own(small_encoder: str) -> None:
    with pytest.raises(XMCBenchError, match="needs a folder of sentence-transformers: found no modules"):
        own(small_encoder)


def test_the_first_layers_of_a_transformer(small_encoder: str, tmp_path: Path) -> None:
    whole, first = (
        TransformerEncoder.build(EncoderConfig(name=small_encoder, layers=layers), [], 0, Path()) for layers in (2, 1)
    )
    kept = {name for name in whole.state_dict() if ".layer.1." not in name}
    assert first.state_dict().keys() == kept != whole.state_dict().keys()
    assert all(torch.equal(tensor, whole.state_dict()[name]) for name, tensor in first.state_dict().items())
    first.save(tmp_path)
    again = TransformerEncoder.load(first.config, tmp_path)
    assert np.array_equal(vectors(again), vectors(first))
    with pytest.raises(XMCBenchError, match="has 2 layers, found layers: 3"):
        TransformerEncoder.build(EncoderConfig(name=small_encoder, layers=3), [], 0, Path())
