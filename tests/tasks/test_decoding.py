"""Tag schemes by hand and by round trips; CRF, Viterbi and spans against all possibilities."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.ops.backend import has_triton
from torchelmo.tasks.decoding import (
    SCHEMES,
    Crf,
    Span,
    best_path,
    best_span,
    constraints,
    convert,
    to_spans,
    to_tags,
)


@st.composite
def sentences(draw):
    """A length and spans in it that do not overlap, some touching."""
    spans, at = [], 0
    for gap, size, label in draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(["A", "B-C", "é"])),
            max_size=6,
        )
    ):
        spans.append(Span(label, at + gap, at + gap + size))
        at += gap + size
    return at + draw(st.integers(0, 2)), spans


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sentences())
@settings(max_examples=60)
def test_spans_to_tags_and_back(scheme, sentence):
    length, spans = sentence
    tags = to_tags(spans, length, scheme)
    assert len(tags) == length
    assert to_spans(tags) == spans


@given(sentences(), st.sampled_from(SCHEMES), st.sampled_from(SCHEMES))
@settings(max_examples=100)
def test_schemes_convert_and_keep_their_rules(sentence, one, two):
    length, spans = sentence
    tags = to_tags(spans, length, one)
    assert convert(convert(tags, two), one) == tags
    names = sorted(set(tags))
    if names:
        rules, place = constraints(names, one), {name: n for n, name in enumerate(names)}
        ids = [place[tag] for tag in tags]
        assert rules.begin[ids[0]] and rules.end[ids[-1]]
        assert all(rules.follow[a, b] for a, b in pairwise(ids))


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "I-ORG O I-PER I-PER B-PER I-LOC"),
        ("IOB2", "B-ORG O B-PER I-PER B-PER B-LOC"),
        ("BIOUL", "U-ORG O B-PER L-PER U-PER U-LOC"),
        ("BIOES", "S-ORG O B-PER E-PER S-PER S-LOC"),
    ],
)
def test_one_sentence_in_four_schemes(scheme, tags):
    spans = [Span("ORG", 0, 1), Span("PER", 2, 4), Span("PER", 4, 5), Span("LOC", 5, 6)]
    assert to_spans(tags.split()) == spans
    assert to_tags(spans, 6, scheme) == tags.split()


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("I-X I-Y", [("X", 0, 1), ("Y", 1, 2)]),
        ("B-X I-Y I-Y", [("X", 0, 1), ("Y", 1, 3)]),
        ("L-X L-X", [("X", 0, 1), ("X", 1, 2)]),
        ("B-X U-X I-X", [("X", 0, 1), ("X", 1, 2), ("X", 2, 3)]),
        ("B-X O I-X", [("X", 0, 1), ("X", 2, 3)]),
        ("B-X B-X", [("X", 0, 1), ("X", 1, 2)]),
        ("B-C-ARG1 I-C-ARG1 B-V", [("C-ARG1", 0, 2), ("V", 2, 3)]),
        ("", []),
    ],
)
def test_broken_sequences_are_read_as_the_scorer_does(tags, spans):
    assert [tuple(span) for span in to_spans(tags.split())] == spans


@pytest.mark.parametrize(
    "spans", [[Span("A", 0, 2), Span("A", 1, 3)], [Span("A", 2, 4)], [Span("A", 1, 1)]]
)
def test_spans_that_tags_cannot_hold_are_refused(spans):
    with pytest.raises(InputError, match="overlaps another or leaves the 3 words"):
        to_tags(spans, 3)


def test_unknown_scheme_is_refused():
    with pytest.raises(InputError, match="'BILOU', expected one of IOB1"):
        to_tags([], 1, "BILOU")


def test_bioul_rules_by_hand():
    tags = ["O", "B-X", "I-X", "L-X", "U-X", "B-Y", "I-Y", "L-Y"]
    rules = constraints(tags, "BIOUL")
    after = {tag: {tags[n] for n in row.nonzero()} for tag, row in zip(tags, rules[0], strict=True)}
    fresh = {"O", "B-X", "U-X", "B-Y"}
    assert after["O"] == after["L-X"] == after["U-X"] == after["L-Y"] == fresh
    assert after["B-X"] == after["I-X"] == {"I-X", "L-X"}
    assert after["B-Y"] == after["I-Y"] == {"I-Y", "L-Y"}
    assert {tags[n] for n in rules.begin.nonzero().flatten()} == fresh
    assert {tags[n] for n in rules.end.nonzero().flatten()} == {"O", "L-X", "U-X", "L-Y"}


def test_bio_rules_by_hand():
    rules = constraints(["O", "B-X", "I-X", "B-Y", "I-Y"], "IOB2")
    assert rules.begin.tolist() == [True, True, False, True, False]
    assert rules.end.all()
    assert rules.follow[:, 2].tolist() == [False, True, True, False, False]
    assert rules.follow[:, 4].tolist() == [False, False, False, True, True]
    assert rules.follow[:, [0, 1, 3]].all()


def brute(crf, logits):
    """All paths of one unpadded sentence (T, K) with their scores."""
    paths = list(product(range(logits.shape[1]), repeat=logits.shape[0]))
    scores = []
    for path in paths:
        score = sum(logits[t, tag] for t, tag in enumerate(path))
        score = score + sum(crf.transitions[a, b] for a, b in pairwise(path))
        if crf.begin is not None:
            score = score + crf.begin[path[0]] + crf.end[path[-1]]
        scores.append(score)
    return paths, torch.stack(scores)


def make(tags, *, boundaries, rules=None, lengths=(4, 1, 3, 0), seed=1):
    torch.manual_seed(seed)
    crf = Crf(tags, boundaries=boundaries, constraints=rules).double()
    logits = torch.randn(len(lengths), max(lengths), tags)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return crf, logits, mask


@pytest.mark.parametrize("boundaries", [True, False])
def test_likelihood_and_gradients_equal_enumeration(boundaries):
    lengths = (4, 1, 3, 0)
    crf, logits, mask = make(3, boundaries=boundaries)
    crf = crf.float()
    # Padding must not matter, neither tag nor score.
    tags = torch.randint(0, 3, mask.shape).masked_fill(~mask, -100)
    logits = logits.masked_fill(~mask.unsqueeze(2), 1e4).requires_grad_()

    got = crf.log_likelihood(logits, tags, mask)
    got.sum().backward()
    found = {name: p.grad.clone() for name, p in crf.named_parameters()}
    found["logits"] = logits.grad.clone()
    crf.zero_grad()
    logits.grad = None

    expected = []
    for row, length in enumerate(lengths):
        if not length:
            expected.append(torch.zeros(()))
            continue
        paths, scores = brute(crf, logits[row, :length])
        gold = paths.index(tuple(tags[row, :length].tolist()))
        expected.append(scores[gold] - scores.logsumexp(0))
    torch.testing.assert_close(got, torch.stack(expected), atol=1e-5, rtol=1e-5)
    torch.stack(expected).sum().backward()
    wanted = {name: p.grad for name, p in crf.named_parameters()} | {"logits": logits.grad}
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not has_triton(), reason="needs Triton")
@pytest.mark.parametrize("boundaries", [True, False])
@pytest.mark.parametrize("tags", [1, 5, 17])
def test_the_kernels_sum_over_sequences_as_the_plain_loop_does(tags, boundaries):
    """In Triton's interpreter where there is no GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(tags)
    crf = Crf(tags, boundaries=boundaries).to(device)
    logits = (3 * torch.randn(5, 7, tags, device=device)).requires_grad_()
    lengths = torch.tensor([7, 1, 4, 0, 6], device=device)
    mask = torch.arange(7, device=device) < lengths.unsqueeze(1)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5], device=device)
    asked = [logits, *crf.parameters()]
    plain, fused = (crf._partition(logits, mask, backend) for backend in ("torch", "triton"))
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    one = torch.autograd.grad((fused * weights).sum(), asked)
    two = torch.autograd.grad((plain * weights).sum(), asked)
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_probabilities_of_all_sequences_sum_to_one():
    crf, logits, _ = make(3, boundaries=True, lengths=(3,))
    tags = torch.tensor(list(product(range(3), repeat=3)))
    mask = torch.ones(27, 3, dtype=torch.bool)
    total = crf.log_likelihood(logits.expand(27, 3, 3), tags, mask).exp().sum()
    torch.testing.assert_close(total, torch.ones((), dtype=total.dtype), atol=1e-5, rtol=0)


@pytest.mark.parametrize("boundaries", [True, False])
@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_viterbi_equals_enumeration(boundaries, constrained, seed):
    names = ["O", "B-X", "I-X", "L-X", "U-X"]
    rules = constraints(names, "BIOUL") if constrained else None
    lengths = (4, 1, 3, 0)
    crf, logits, mask = make(5, boundaries=boundaries, rules=rules, lengths=lengths, seed=seed)
    paths, scores = crf.viterbi(logits, mask)
    crf.requires_grad_(False)
    for row, length in enumerate(lengths):
        assert len(paths[row]) == length
        if not length:
            assert scores[row] == 0
            continue
        every, values = brute(crf, logits[row, :length])
        if rules:
            allowed = torch.tensor(
                [
                    bool(rules.begin[p[0]] and rules.end[p[-1]])
                    and all(rules.follow[a, b] for a, b in pairwise(p))
                    for p in every
                ]
            )
            values = values.masked_fill(~allowed, float("-inf"))
        assert tuple(paths[row]) == every[int(values.argmax())]
        assert float(scores[row]) == pytest.approx(float(values.max()), abs=1e-5)


def test_decoded_bioul_is_always_well_formed():
    names = ["O", *(f"{letter}-{label}" for label in "XY" for letter in "BILU")]
    torch.manual_seed(2)
    crf = Crf(len(names), constraints=constraints(names, "BIOUL"), boundaries=False)
    paths, _ = crf.viterbi(5 * torch.randn(30, 9, len(names)), torch.ones(30, 9).bool())
    for path in paths:
        tags = [names[n] for n in path]
        assert convert(tags, "BIOUL") == tags


def test_constraints_do_not_touch_the_likelihood_nor_the_saved_weights():
    rules = constraints(["O", "B-X", "I-X"], "IOB2")
    bound, logits, mask = make(3, boundaries=True, rules=rules)
    free, _, _ = make(3, boundaries=True)
    tags = torch.zeros_like(mask, dtype=torch.long)
    assert torch.equal(
        bound.log_likelihood(logits, tags, mask), free.log_likelihood(logits, tags, mask)
    )
    assert set(bound.state_dict()) == {"transitions", "begin", "end"}
    assert set(Crf(3, boundaries=False).state_dict()) == {"transitions"}


@pytest.mark.parametrize("seed", range(4))
def test_bio_decoding_for_roles_equals_enumeration(seed):
    names = ["O", "B-V", "B-A0", "I-A0", "I-V"]
    rules = constraints(names, "IOB2")
    torch.manual_seed(seed)
    lengths = (5, 2, 4)
    scores = torch.randn(3, 5, 5).log_softmax(dim=-1)
    mask = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    paths, values = best_path(scores, mask, constraints=rules)
    for row, length in enumerate(lengths):
        legal = [
            path
            for path in product(range(5), repeat=length)
            if names[path[0]][0] != "I"
            and all(names[b][0] != "I" or names[a][2:] == names[b][2:] for a, b in pairwise(path))
        ]
        totals = [sum(float(scores[row, t, k]) for t, k in enumerate(path)) for path in legal]
        best = max(range(len(legal)), key=totals.__getitem__)
        assert tuple(paths[row]) == legal[best]
        assert float(values[row]) == pytest.approx(totals[best], abs=1e-5)


def test_no_words_at_all():
    paths, scores = best_path(torch.zeros(2, 0, 3), torch.zeros(2, 0).bool())
    assert paths == [[], []] and scores.tolist() == [0, 0]
    crf = Crf(3)
    empty = torch.zeros(2, 0)
    assert crf.log_likelihood(torch.zeros(2, 0, 3), empty.long(), empty.bool()).tolist() == [0, 0]
    start, end, score = best_span(empty, empty, empty.bool())
    assert start.tolist() == end.tolist() == [0, 0] and score.isinf().all()


@given(
    st.integers(1, 9),
    st.integers(1, 10),
    st.integers(0, 10_000),
)
@settings(max_examples=60)
def test_best_span_equals_enumeration(length, limit, seed):
    generator = torch.Generator().manual_seed(seed)
    start, end = torch.randn(2, 3, 9, generator=generator)
    mask = (torch.arange(9) < torch.tensor([[length], [9], [0]])).bool()
    first, after, score = best_span(start, end, mask, limit=limit)
    for row, words in enumerate((length, 9)):
        spans = [(a, b) for a in range(words) for b in range(a + 1, min(a + limit, words) + 1)]
        values = [float(start[row, a] + end[row, b - 1]) for a, b in spans]
        best = max(range(len(spans)), key=values.__getitem__)
        assert (int(first[row]), int(after[row])) == spans[best]
        assert float(score[row]) == pytest.approx(values[best])
    assert (int(first[2]), int(after[2]), float(score[2])) == (0, 0, float("-inf"))
