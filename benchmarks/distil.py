"""Word vectors of a static encoder that imitate a transformer on the training texts of a dataset, without its labels.

    python benchmarks/distil.py lf-tate-titles-16k --data DIRECTORY --to FOLDER

writes FOLDER, which `encoder: {name: static, words: FOLDER}` reads. The words begin as those of `minilm`; the mean of a
text's words learns the direction of the transformer's embedding of the text, by cosine. What this costs is printed; no
trial is charged for it.

Legend: N texts, B texts of a step, D dimensions of an embedding, V word pieces, T word pieces of a step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cosine_similarity, embedding_bag

from xmcbench import data
from xmcbench.engine.encoders.build import build_encoder
from xmcbench.engine.encoders.encoder import embed_all
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.static import StaticEncoder

LENGTH = 64  # tokens of a text that are read
EPOCHS, BATCH, RATE = 8, 512, 1e-2


def distil(texts: data.Texts, teacher: str, folder: Path, cache: Path) -> None:
    """Write the words into `folder`, and print how near they come to the transformer."""
    start = time.process_time()
    large = build_encoder(EncoderConfig(name=teacher), texts, 0, cache)
    tokens = large.tokenizer.tokens(texts, LENGTH, cache)
    wanted_ND = embed_all(large, tokens, precision="float32", micro_batch_tokens=16_384)
    embedding_flops = large.flops(tokens.lengths)
    static = build_encoder(EncoderConfig(name="static"), texts, 0, cache)
    assert isinstance(static, StaticEncoder)
    words = static.tokenizer.tokens(texts, LENGTH, cache)
    # The encoder gives its table's gradients to the harness's own optimiser; here torch's sees them.
    words_VD = static.bags.vectors.weight
    optimizer = torch.optim.SparseAdam([words_VD], lr=RATE)
    steps, rng = EPOCHS * (len(texts) // BATCH), np.random.default_rng(0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for epoch in range(EPOCHS):
        order_N, near = rng.permutation(len(texts)), list[float]()
        for first in range(0, len(texts) - BATCH + 1, BATCH):
            rows_B = order_N[first : first + BATCH]
            ids_T, starts_B = map(torch.from_numpy, static.collate(words, rows_B))
            embeddings_BD = embedding_bag(ids_T, words_VD, starts_B, mode="mean", sparse=True)
            cosines_B = cosine_similarity(embeddings_BD, wanted_ND[rows_B])
            optimizer.zero_grad()
            (1 - cosines_B).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()  # type: ignore[no-untyped-call]
            schedule.step()
            near.append(float(cosines_B.detach().mean()))
        print(f"epoch {epoch + 1}: mean cosine {np.mean(near):.3f}", flush=True)
    folder.mkdir(parents=True)
    static.save(folder)
    static.write_sentence_layout(folder, LENGTH)
    seconds = time.process_time() - start
    print(f"{folder}: {len(texts):,} texts, {embedding_flops:.1e} operations of the transformer, {seconds:.0f} CPU s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--teacher", default="minilm", help="any encoder with as many dimensions as `minilm`")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new folder")
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as cache:
        distil(data.load(given.dataset, given.data).train.texts, given.teacher, given.to, Path(cache))


if __name__ == "__main__":
    main()
