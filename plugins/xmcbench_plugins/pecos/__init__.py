"""PECOS: XR-Linear and XR-Transformer over TF-IDF features, each in a separate environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from xmcbench import Method, MethodInfo, Run, XMCBenchError, data, encoders, hookimpl, programs
from xmcbench_plugins.external import PythonProgram
from xmcbench_plugins.tfidf import Characters

LIBPECOS = "libpecos==1.2.8"
NUMERICS = ("numpy<2", "scipy<1.14", "scikit-learn>=1.5")
TRANSFORMERS = ("bert", "distilbert", "roberta", "xlm-roberta", "xlnet")  # model types that PECOS has a class for


class Pecos(PythonProgram):
    """The base of both models: features, label tree, linear rankers."""

    class Config(Method.Config):
        ngrams: int = Field(default=1, ge=1, description="words of a term, at most")
        characters: Characters = None
        branches: int = Field(default=16, ge=2, description="children of a cluster")
        max_leaf: int = Field(default=100, ge=1, description="labels of a cluster at the last level, at most")
        beam: int = Field(default=10, ge=1, description="clusters that prediction explores at each level")
        cost: float = Field(default=1.0, gt=0, description="C of the linear rankers")
        negatives: Literal["tfn", "man", "tfn+man"] = Field(default="tfn", description="scheme of negative sampling")


class XRLinear(Pecos):
    """XR-Linear (Yu et al., 2022): a tree of label clusters with a linear ranker at each level."""

    name = "pecos-xrlinear"
    info = MethodInfo(
        summary="XR-Linear: hierarchical linear rankers over TF-IDF features (PECOS)",
        citation="Yu et al., 2022: PECOS: Prediction for Enormous and Correlated Output Spaces",
        needs=("libpecos",),
    )
    uses_gpu = False
    program = Path(__file__).with_name("xr_linear_program.py")
    # XR-Linear needs no other dependencies of libpecos.
    environment = programs.Environment("pecos", NUMERICS, no_dependencies=(LIBPECOS,))


class XRTransformer(Pecos):
    """XR-Transformer (Zhang et al., 2021): an encoder trained level by level on the clusters of a label tree, then
    linear rankers over its embeddings and TF-IDF features."""

    name = "pecos-xrtransformer"
    info = MethodInfo(
        summary="XR-Transformer: an encoder trained on label clusters, then linear rankers with TF-IDF (PECOS)",
        citation="Zhang et al., 2021: Fast Multi-Resolution Transformer Fine-tuning for Extreme Multi-label Text "
        "Classification",
        needs=("libpecos",),
    )
    program = Path(__file__).with_name("xr_transformer_program.py")
    # PECOS imports names that transformers 4.49 and later no longer have.
    environment = programs.Environment(
        "pecos-transformers", (*NUMERICS, "torch>=2.3", "transformers>=4.40,<4.49"), no_dependencies=(LIBPECOS,)
    )

    class Config(Pecos.Config):
        encoder: encoders.EncoderConfig = Field(
            encoders.EncoderConfig(), description="PECOS reads `name` and `hidden_dropout` and pools in its own way"
        )
        negatives: Literal["tfn", "man", "tfn+man"] = Field(
            default="tfn+man", description="scheme of negative sampling"
        )
        max_query_length: int = Field(default=128, ge=1, description="tokens of a query; longer texts are cut")
        batch_size: int = Field(default=32, ge=1, description="queries of a step")
        learning_rate: float = Field(default=5e-5, gt=0, description="of AdamW, at the first step of a level")
        steps: int = Field(default=1000, ge=1, description="training steps of the encoder per level of the tree")
        max_clusters: int = Field(
            default=32768, ge=2, description="the encoder is trained on levels with at most so many clusters"
        )

    config: Config

    def fit(self, train: data.TrainingData, run: Run) -> None:
        """Export the encoder in the layout of transformers, uncharged as in every method, then run the program."""
        encoder = encoders.build_encoder(self.config.encoder, train.texts, run.seed, run.cache)
        found = encoder.transformer.config.model_type if isinstance(encoder, encoders.TransformerEncoder) else "static"
        if found not in TRANSFORMERS:
            raise XMCBenchError(
                f"{self.name}: encoder {self.config.encoder.name!r} is of type {found}, "
                f"expected one that PECOS knows: {', '.join(TRANSFORMERS)}"
            )
        encoder.save(run.checkpoint / "program" / "encoder")
        super().fit(train, run)


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(XRLinear)
    register(XRTransformer)
