"""ColBERT's score is its equation, and random pairs are learnt by it. What the engine derives of the score is tested in
`tests/engine/training/test_own_score.py`."""

from __future__ import annotations

import torch

from xmcbench_plugins.colbert import ColBERT
from xmcbench_plugins.colbert.token_vectors import TokenVectors

TOKENS, SIZE, WIDTH = 4, 3, 5
LENGTHS = {"query": [1, 4, 2], "label": [3, 4, 1, 2]}


def test_a_score_is_the_sum_over_tokens_of_the_largest_cosine() -> None:
    torch.manual_seed(0)
    pooling, rows, states = TokenVectors(WIDTH, TOKENS, SIZE), {}, {}
    for kind, lengths in LENGTHS.items():
        most = max(lengths)
        states[kind] = torch.randn(len(lengths), most, WIDTH)
        mask = torch.arange(most) < torch.tensor(lengths)[:, None]
        rows[kind] = pooling(states[kind], mask, mask.long()).flatten(1)
    method = ColBERT(ColBERT.Config(tokens=TOKENS, dimensions=SIZE))
    found_BS = method.score(rows["query"], rows["label"])
    assert found_BS.shape == (3, 4)
    for i, tokens in enumerate(LENGTHS["query"]):
        for j, others in enumerate(LENGTHS["label"]):
            wanted = 0.0
            for t in range(tokens):
                left = pooling.project(states["query"][i, t])
                right = [pooling.project(states["label"][j, u]) for u in range(others)]
                wanted += max(torch.cosine_similarity(left, other, dim=0).item() for other in right)
            assert abs(found_BS[i, j].item() - wanted) < 1e-5


def test_tokens_beyond_the_first_are_not_compared() -> None:
    pooling, states = TokenVectors(WIDTH, TOKENS, SIZE), torch.randn(1, TOKENS + 3, WIDTH)
    mask = torch.ones(1, TOKENS + 3, dtype=torch.bool)
    whole = pooling(states, mask, mask.long())
    torch.testing.assert_close(whole, pooling(states[:, :TOKENS], mask[:, :TOKENS], mask[:, :TOKENS].long()))
