"""The models that were published in bilm-tf's format at addresses of their own.

AI2 published no checksums, and none that could be trusted were found: a file from its addresses is
held to the sum of its first download. Mirrors on the hub are named with the commit that was seen to
hold the model; what they hold cannot change under that name.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchelmo.config import nearest
from torchelmo.errors import InputError

AI2 = "https://s3-us-west-2.amazonaws.com/allennlp/models/elmo/"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A model that its authors put on the web in bilm-tf's format."""

    name: str
    summary: str
    options: str  # addresses
    weights: str
    licence: str
    size: int | None = None  # bytes of the weights, nearly
    aliases: tuple[str, ...] = ()
    mirrors: tuple[tuple[str, str], ...] = ()  # hub ids with the commit that was seen to hold it
    softmax: str | None = None
    vocabulary: str | None = None  # of the softmax


def _ai2(
    name: str,
    kind: str,
    summary: str,
    size: int,
    *,
    mirrors: tuple[tuple[str, str], ...] = (),
    softmax: bool = False,
    vocabulary: str | None = None,
) -> Published:
    """Fill in the addresses that follow from AI2's way of naming."""
    base = f"{AI2}{kind}/elmo_{kind}"
    return Published(
        name=name,
        summary=summary,
        options=f"{base}_options.json",
        weights=f"{base}_weights.hdf5",
        licence="no restrictions, says AI2 (github.com/allenai/allennlp/issues/1462)",
        size=size,
        aliases=(name.replace("ai2-", "elmo-"), kind, f"elmo_{kind}", f"elmo-{kind}"),
        mirrors=mirrors,
        softmax=f"{base}_softmax_weights.hdf5" if softmax else None,
        vocabulary=vocabulary,
    )


_ORIGINAL, _LARGE = "2x4096_512_2048cnn_2xhighway", "2x4096_512_2048cnn_2xhighway_5.5B"
_PUBMED, _PT = f"{AI2}contributed/pubmed/elmo_{_ORIGINAL}", f"{AI2}contributed/pt/elmo_pt"

PUBLISHED: dict[str, Published] = {
    model.name: model
    for model in (
        _ai2(
            "ai2-small",
            "2x1024_128_2048cnn_1xhighway",
            "English, 13.6 M parameters, 1 Billion Word Benchmark",
            54_400_000,
        ),
        _ai2(
            "ai2-medium",
            "2x2048_256_2048cnn_1xhighway",
            "English, 28.0 M parameters, 1 Billion Word Benchmark",
            112_100_000,
        ),
        _ai2(
            "ai2-original",
            _ORIGINAL,
            "English, 93.6 M parameters, 1 Billion Word Benchmark: the paper's",
            374_434_792,
            mirrors=(
                (
                    "lysandre/elmo-2x4096_512_2048cnn_2xhighway",
                    "20d7005306acf8a4f3654740c63bafbff99ecc1b",
                ),
                ("lysandre/elmo", "7a5f7d27fc89ed248077ec099841474ca18a9aab"),
            ),
            softmax=True,
            vocabulary=f"{AI2}vocab-2016-09-10.txt",
        ),
        _ai2(
            "ai2-5.5b",
            _LARGE,
            "English, 93.6 M parameters, 5.5 billion words of Wikipedia and news",
            374_400_000,
            softmax=True,
            vocabulary=f"{AI2}{_LARGE}/tf_checkpoint/vocab-enwiki-news-500000.txt",
        ),
        Published(
            name="ai2-pubmed",
            summary="English, 93.6 M parameters, PubMed; contributed to AI2",
            options=f"{_PUBMED}_options.json",
            weights=f"{_PUBMED}_weights_PubMed_only.hdf5",
            licence="not stated",
            size=374_400_000,
            aliases=("elmo-pubmed",),
        ),
        Published(
            name="ai2-pt",
            summary="Portuguese; contributed to AI2",
            options=f"{_PT}_options.json",
            weights=f"{_PT}_weights.hdf5",
            licence="not stated",
            aliases=("elmo-pt", "elmo_pt"),
        ),
    )
}


def published_names() -> list[str]:
    """Return the names of the published models, without their other names."""
    return list(PUBLISHED)


def is_published(name: str) -> bool:
    """Whether a name, in capitals or not, is that of a published model."""
    return name.lower() in _by_any_name()


def published(name: str) -> Published:
    """Return what is known of a published model."""
    found = _by_any_name().get(name.lower())
    if found is None:
        raise InputError(f"there is no published model {name!r}{nearest(name, PUBLISHED)}")
    return found


def _by_any_name() -> dict[str, Published]:
    return {n.lower(): m for m in PUBLISHED.values() for n in (m.name, *m.aliases)}
