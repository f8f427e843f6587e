"""Cards of the datasets that the papers report on, and of two real datasets that are small enough for a CPU.

docs/datasets.md says which tables the sizes and maximum lengths are from. The propensity constants A and B of
AmazonCat-13K and LF-WikiSeeAlso-320K are those of neither Amazon products nor Wikipedia categories.

Mean words of texts, from which a plan without the data infers tokens: titles of products and articles from UniDEC's
Table 4 (labels are titles too), Wikipedia categories as counted in 824 of them (those of the 206 articles in gensim
4.4.0's test data). Labels per query: DEXML's Table 6, UniDEC's Table 4, and LEVER's Table 3 for LMTX's split of
LF-Wikipedia-500K. Long texts fill their maximum length.
"""

from __future__ import annotations

from typing import Literal

from xmcbench.data.source import SIZES, Draft, FolderSource

REPOSITORY = "http://manikvarma.org/downloads/XC/XMLRepository.html"
XR_TRANSFORMER = "https://github.com/amzn/pecos/tree/mainline/examples/xr-transformer-neurips21"
APLC_XLNET = "https://github.com/huiyegit/APLC_XLNet"
SEE_SOURCE = "see the source"
WIKIPEDIA = (0.5, 0.4)
WIKIPEDIA_500K = (1_813_391, 783_743, 501_070)
# PECOS' archives of XR-Transformer's files. Its EURLex-4K has other labels than DEXML's.
PECOS = "https://archive.org/download/pecos-dataset/xmc-base"
DOWNLOADS = {name: f"{PECOS}/{name}.tar.gz" for name in ("wiki10-31k", "amazoncat-13k")}
AMAZON = (0.6, 2.6)
OTHER = (0.55, 1.5)
CATEGORY_WORDS = 3.26  # of a Wikipedia category
ARTICLE_WORDS = 3.01  # of the title of a Wikipedia article


def _published(
    name: str,
    sizes: tuple[int, int, int],
    ab: tuple[float, float],
    text: Literal["title", "title content"] = "title content",
    labels_per_query: float | None = None,
    query_words: float | None = None,
    label_words: float | None = None,
    source: str = REPOSITORY,
) -> Draft:
    """A card from the numbers of training queries, test queries and labels. Titles have up to 32 tokens, others 128."""
    max_length = 32 if text == "title" else 128
    return Draft(
        name=name,
        **dict(zip(SIZES, sizes, strict=True)),
        propensity_a=ab[0],
        propensity_b=ab[1],
        max_length=max_length,
        max_label_length=max_length,
        text=text,
        source=source,
        licence=SEE_SOURCE,
        query_words=query_words,
        label_words=label_words,
        labels_per_query=labels_per_query,
    )


PUBLISHED = (
    # DEXML Table 6
    _published("eurlex-4k", (15_449, 3_865, 3_801), OTHER, labels_per_query=5.30, source=XR_TRANSFORMER),
    # LMTX Table 1: another split of EURLex-4K, and two datasets that other papers use too.
    _published("eurlex-4k-lmtx", (15_511, 3_803, 3_956), OTHER, source=APLC_XLNET),
    _published("wiki10-31k", (14_146, 6_616, 30_938), OTHER, source=XR_TRANSFORMER),
    _published("amazoncat-13k", (1_186_239, 306_782, 13_330), OTHER, source=XR_TRANSFORMER),
    # DEXML Table 6
    _published("lf-amazontitles-131k", (294_805, 134_835, 131_073), AMAZON, "title", 2.29, 6.92, 6.92),
    # UniDEC's dataset table; test size from PRIME Table 7 (134.8K). The same products as lf-amazontitles-131k.
    _published("lf-amazon-131k", (294_805, 134_835, 131_073), AMAZON, labels_per_query=2.29),
    # LMTX Table 1
    _published("lf-wikiseealso-320k", (693_082, 177_515, 312_330), OTHER, "title content", 2.11, None, ARTICLE_WORDS),
    # LMTX Table 1 for the articles; the rounded sizes of the titles in PRIME Table 7 agree (1.8M / 0.8M / 0.5M).
    _published("lf-wikititles-500k", WIKIPEDIA_500K, WIKIPEDIA, "title", 4.77, ARTICLE_WORDS, CATEGORY_WORDS),
    _published("lf-wikipedia-500k", WIKIPEDIA_500K, WIKIPEDIA, "title content", 4.77, None, CATEGORY_WORDS),
    # DEXML Table 6: fewer queries, the same labels.
    _published(
        "lf-wikipedia-500k-dexml",
        (1_779_881, 769_421, 501_070),
        WIKIPEDIA,
        labels_per_query=4.75,
        label_words=CATEGORY_WORDS,
    ),
    # DEXML Table 6
    _published("lf-amazontitles-1.3m", (2_248_619, 970_237, 1_305_265), AMAZON, "title", 22.20, 8.74, 8.74),
)

SMALL = (
    Draft(
        name="lf-tate-titles-16k",
        num_train=44_694,
        num_test=14_107,
        num_labels=16_455,
        source="Tate collection metadata, https://github.com/tategallery/collection, split by title",
        licence="CC0",
    ),
    Draft(
        name="lf-tibkat-15k",
        num_train=36_743,
        num_test=3_123,
        num_labels=14_623,
        max_length=128,
        source="TIBKAT records with GND subjects, https://github.com/sciknoworg/subject-indexing-dataset; "
        "English names of subjects, https://github.com/NatLibFi/Annif-LLMs4Subjects",
        licence="CC BY 4.0, subject names CC0",
    ),
    Draft(
        name="lf-tibkat-gnd-38k",
        num_train=109_955,
        num_test=25_743,
        num_labels=38_166,
        max_length=128,
        source="LLMs4Subjects, https://github.com/sciknoworg/subject-indexing-dataset at 38ba1959: TIBKAT records with "
        "GND subjects; D'Souza et al., SemEval-2025 Task 5, https://aclanthology.org/2025.semeval2025-1.139",
        licence="CC BY 4.0 by the repository's LICENSE, CC BY-SA 4.0 by its README",
    ),
)


def folder_sources() -> list[FolderSource]:
    """A source for every card above."""
    return [FolderSource(draft, DOWNLOADS.get(draft.name, "")) for draft in (*PUBLISHED, *SMALL)]
