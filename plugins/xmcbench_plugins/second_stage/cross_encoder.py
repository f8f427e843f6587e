"""A cross-encoder ranks the first method's best labels: a transformer that reads query and label together.

Trained by localised contrastive estimation (Gao et al., ECIR 2021): of a query, one true label competes in a softmax
with labels that the first method shortlists wrongly.

Legend: N queries, C of a chunk, B of a batch, K labels of a shortlist, G labels of a group: a true one, then negatives.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from pydantic import Field

from xmcbench import DualEncoder, Method, MethodInfo, Run, XMCBenchError, data, encoders, import_extra, upload
from xmcbench_plugins.second_stage.stage import Reranker, resolve

if TYPE_CHECKING:
    from torch import Tensor

CHUNK, TIMED = 64, 4  # queries scored at once; of these those whose seconds tell those of the others
WARMUP = 0.1  # share of the training over which the rate rises
FOLDER, LABELS = "cross-encoder", "labels.json"  # in a model's directory
SEEDS = 2**63
LIBRARY = "sentence_transformers"


class CrossEncoderRanker(Reranker):
    """Trains and asks a cross-encoder of sentence-transformers. Without budget for a step, the first method answers."""

    name = "cross-encoder"
    info = MethodInfo(
        summary="second stage: a cross-encoder ranks a dual encoder's best labels",
        citation="Gao et al., Rethink Training of BERT Rerankers in Multi-Stage Retrieval Pipeline, ECIR 2021",
        needs=("label texts", "sentence-transformers"),
        charges={"flops": 2},  # 2: counted as they are computed, with attention and padding
        # 2: tuned by its own answers to held-out queries; 3: the rate rises over a tenth of the budget, if that is less
        version=3,
    )
    many_workers = False
    late_imports = (*Reranker.late_imports, f"{LIBRARY}.cross_encoder")

    class Config(Reranker.Config):
        model: str = Field(min_length=1, description="a cross-encoder, or a transformer to make one of; or minilm")
        share: float = Field(0.5, gt=0, lt=1, description="share of every limit of the budget for the first method")
        max_length: int = Field(128, gt=4, description="tokens of query and label together")
        epochs: float = Field(
            1.0, ge=0, description="passes over the training queries with a label, within the budget; 0: as it is"
        )
        batch_size: int = Field(16, gt=0, description="queries per step")
        negatives: int = Field(7, gt=0, description="labels of the shortlist that are not true, per query and step")
        learning_rate: float = Field(2e-5, gt=0, description="peak rate of AdamW: rises over a tenth, then falls to 0")
        weight_decay: float = Field(0.01, ge=0, description="weight decay of AdamW")

    config: CrossEncoderRanker.Config
    model: Any  # a CrossEncoder
    label_texts: list[str]
    asked: bool  # whether the cross-encoder has a say

    @property
    def num_parameters(self) -> int:
        own: int = sum(values.numel() for values in self.model.parameters() if values.requires_grad)
        return self.first.num_parameters + own

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:
        """Asked as it is, it needs what its first method needs."""
        assert isinstance(config, CrossEncoderRanker.Config)
        kind, settings = resolve(config.first, DualEncoder)
        return config.epochs > 0 or kind.needs_annotations(settings)

    def skip(self, card: data.DatasetCard) -> str | None:
        if find_spec(LIBRARY) is None:
            return "needs sentence-transformers: pip install 'xmcbench[rerank]'"
        return super().skip(card)

    def fit(self, train: data.TrainingData, run: Run) -> None:
        import torch

        with run.ledger.stage("prepare"), torch.random.fork_rng(devices=[]):
            self._open(self.config.model, "cpu")  # what is no cross-encoder is refused before the first method trains
        super().fit(train, run)

    def learn(self, train: data.TrainingData, queries_ND: Tensor | None, run: Run) -> None:
        import torch

        with run.ledger.stage("prepare"):
            torch.manual_seed(int(run.rng("cross-encoder", "weights").integers(SEEDS)))  # a new head, and dropout
            self.model = self._open(self.config.model, self.first.index_LD.device)
            self.label_texts = list(train.label_texts)
        self.asked = self.config.epochs == 0
        if queries_ND is None or self.asked:
            return
        wrong = scipy.sparse.csr_array(train.ignore + train.targets)
        self._train(train, self.listed(queries_ND, wrong, run), run)

    def _train(self, train: data.TrainingData, listed_NK: np.ndarray, run: Run) -> None:
        import torch

        config, ledger = self.config, run.ledger
        queries_N = np.flatnonzero((np.diff(train.targets.indptr) > 0) & (listed_NK >= 0).any(axis=1))
        total = max(1, round(config.epochs * len(queries_N) / config.batch_size)) if len(queries_N) else 0
        optimiser = torch.optim.AdamW(self.model.parameters(), config.learning_rate, weight_decay=config.weight_decay)
        rng = run.rng("cross-encoder", "batches")
        order = np.concatenate([rng.permutation(queries_N) for _ in range(int(np.ceil(config.epochs)) + 1)])
        self.model.train()
        for step, place in self.steps(total, run):
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate * min(max((step + 1) / total, place) / WARMUP, 1 - place)
            with ledger.between_checks(run.budget), ledger.stage("train"):
                queries_B = order[step * config.batch_size :][: config.batch_size]
                labels_BG = self._groups(train, listed_NK, queries_B, rng)
                loss = group_loss(self._logits([train.texts[int(i)] for i in queries_B], labels_BG, ledger))
                loss.backward()
                optimiser.step()
                optimiser.zero_grad()
                ledger.steps += 1
                ledger.queries += len(queries_B)
                ledger.epochs += len(queries_B) / len(train.texts)
            self.asked = True
            self.report(run, place, loss=float(loss.detach()), step=ledger.steps)
        self.model.eval()

    def _groups(
        self, train: data.TrainingData, listed_NK: np.ndarray, queries_B: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """[B, G] a true label of each query, drawn uniformly, and labels drawn from its shortlist; -1 pads."""
        groups_BG = np.full((len(queries_B), 1 + self.config.negatives), -1)
        for row, query in enumerate(queries_B):
            true = train.targets.indices[train.targets.indptr[query] : train.targets.indptr[query + 1]]
            listed = listed_NK[query][listed_NK[query] >= 0]
            drawn = rng.permutation(listed)[: self.config.negatives]
            groups_BG[row, 0] = rng.choice(true)
            groups_BG[row, 1 : 1 + len(drawn)] = drawn
        return groups_BG

    def _logits(self, texts: list[str], labels_BG: np.ndarray, ledger: Any) -> Tensor:
        """[B, G] the scores of the pairs, -inf for pads. Charges their real tokens; operations count by themselves."""
        import torch

        rows, columns = np.nonzero(labels_BG >= 0)
        chosen = zip(rows.tolist(), labels_BG[rows, columns].tolist(), strict=True)
        features = self.model.preprocess([(texts[row], self.label_texts[label]) for row, label in chosen])
        tokens = int(features["attention_mask"].sum())
        ledger.encoder_tokens += tokens
        for name, value in features.items():
            if isinstance(value, torch.Tensor):
                features[name] = upload(value, self.model.device) if value.is_cpu else value
        scores = self.model(features)["scores"].reshape(-1).float()
        logits_BG = torch.full(labels_BG.shape, -torch.inf, device=scores.device)
        return logits_BG.index_put((upload(rows, scores.device), upload(columns, scores.device)), scores)

    @property
    def _operations(self) -> int:
        """Operations of a forward pass per token, at least: two for each weight of a matrix that is not looked up."""
        embeddings = self.model.model.get_input_embeddings().weight.numel()
        return 2 * (sum(values.numel() for values in self.model.parameters()) - embeddings)

    def scores(self, texts: data.Texts, labels_NK: np.ndarray) -> np.ndarray:
        import torch

        scores_NK = np.full(labels_NK.shape, np.nan, np.float32)
        for start in range(0, len(texts) if self.asked else 0, CHUNK):
            rows, columns = np.nonzero(labels_NK[start : start + CHUNK] >= 0)
            pairs = self._pairs(texts, labels_NK, start)
            answers = self.model.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
            scores_NK[start + rows, columns] = answers
        return scores_NK

    def charge_scores(self, texts: data.Texts, labels_NK: np.ndarray, run: Run) -> None:
        if not self.asked:
            return
        lengths = []
        for start in range(0, len(texts), CHUNK):
            features = self.model.preprocess(self._pairs(texts, labels_NK, start))
            lengths.append(features["attention_mask"].sum(dim=1).cpu().numpy())
        charging, own = self.first.charging_to(run.ledger, run.budget), self._operations
        lengths_P, pace = np.concatenate(lengths), charging.pace
        if run.budget.device_seconds is not None and len(lengths_P):
            begun, few = run.ledger.device_clock(), labels_NK[:TIMED]
            self.scores(texts[: len(few)], few)
            taken = run.ledger.device_clock() - begun
            pace = replace(pace, encoding=taken / max(1, own * int(lengths_P[: (few >= 0).sum()].sum())))
        replace(charging, encoder_flops=lambda own_P: int(own_P.sum()) * own, pace=pace).require(lengths_P)
        run.ledger.encoder_tokens += int(lengths_P.sum())  # operations count by themselves

    def _pairs(self, texts: data.Texts, labels_NK: np.ndarray, start: int) -> list[tuple[str, str]]:
        """The pairs of a query and a label listed for it, of the `CHUNK` queries from `start` on."""
        rows, columns = np.nonzero(labels_NK[start : start + CHUNK] >= 0)
        labels = labels_NK[start + rows, columns].tolist()
        chosen = zip(rows.tolist(), labels, strict=True)
        return [(texts[start + row], self.label_texts[label]) for row, label in chosen]

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.model.save_pretrained(str(directory / FOLDER), create_model_card=False)
        (directory / LABELS).write_text(json.dumps({"asked": self.asked, "labels": self.label_texts}), encoding="utf-8")

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.model = self._open(str(directory / FOLDER), self.first.index_LD.device)
        facts = json.loads((directory / LABELS).read_text(encoding="utf-8"))
        self.asked, self.label_texts = facts["asked"], facts["labels"]

    def _open(self, name: str, device: Any) -> Any:
        """The cross-encoder of that name, with one output. Raises XMCBenchError where there is none on this machine."""
        library = import_extra(LIBRARY, "rerank", "method 'cross-encoder'")
        folder = encoders.minilm_path() if name == "minilm" else name
        places: dict[str, Any] = {"device": str(device), "local_files_only": True}
        try:
            model = library.CrossEncoder(folder, num_labels=1, max_length=self.config.max_length, **places)
        except Exception as problem:  # the library raises many classes for what is not a model
            reason = " ".join(str(problem).split())[:200]
            raise XMCBenchError(f"cross-encoder {name!r} cannot be opened: {reason}") from problem
        if model.tokenizer.pad_token is None:
            raise XMCBenchError(f"cross-encoder {name!r}: its tokenizer has no padding token")
        return model.eval()


def group_loss(logits_BG: Tensor) -> Tensor:
    """The mean of -log softmax of the first label of each group, over the labels of the group; pads are -inf."""
    return -logits_BG.log_softmax(dim=1)[:, 0].mean()
