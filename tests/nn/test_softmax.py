"""The softmaxes: the adaptive one against torch's own, and as those who score words see it."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo import scoring
from torchelmo.config import AdaptiveConfig, ElmoConfig, LstmConfig
from torchelmo.errors import InputError
from torchelmo.nn.softmax import AdaptiveSoftmax, Softmax, make_softmax
from torchelmo.pretrain import objective
from torchelmo.pretrain.objective import full_loss

CUTOFFS, VOCABULARY, WIDTH = (5, 12, 20), 31, 16


def adaptive(*, biases=True, seed=0, div_value=2.0):
    torch.manual_seed(seed)
    config = AdaptiveConfig(cutoffs=CUTOFFS, div_value=div_value)
    made = AdaptiveSoftmax(VOCABULARY, WIDTH, config)
    with torch.no_grad():
        made.head.bias.normal_()
        for tail in made.tails if biases else ():
            tail.bias.normal_()
    return made


def torchs(ours):
    """Torch's module around the same tensors; its clusters' words have no biases."""
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(
        WIDTH, VOCABULARY, list(CUTOFFS), div_value=2.0, head_bias=True
    )
    theirs.head.weight, theirs.head.bias = ours.head.weight, ours.head.bias
    for (narrow, out), projection, tail in zip(
        theirs.tail, ours.projections, ours.tails, strict=True
    ):
        assert narrow.weight.shape == projection.shape and out.weight.shape == tail.weight.shape
        narrow.weight, out.weight = projection, tail.weight
    return theirs


@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
def test_torch_gives_the_same_probabilities(piece):
    ours = adaptive(biases=False)
    theirs, hidden = torchs(ours), torch.randn(40, WIDTH)
    targets = torch.arange(40) % VOCABULARY
    expected = theirs.log_prob(hidden)
    torch.testing.assert_close(ours(hidden).log_softmax(dim=1), expected)
    found = ours.log_probabilities(hidden, targets, piece)
    torch.testing.assert_close(found, theirs(hidden, targets).output)
    torch.testing.assert_close(scoring.log_softmax(ours, hidden, targets, piece), found)
    together = torch.cat([logits for _, logits in ours.pieces(hidden, piece)], dim=1)
    torch.testing.assert_close(together.log_softmax(dim=1), expected)
    starts = [start for start, _ in ours.pieces(hidden, piece)]
    assert starts == sorted(set(starts)) and set(CUTOFFS) < set(starts)


@pytest.mark.parametrize("piece", [1, 11, 1 << 25])
def test_torch_gives_the_same_loss_and_gradients(piece, monkeypatch):
    monkeypatch.setattr(objective, "PIECE", piece)
    ours, hidden = adaptive(biases=False), torch.randn(23, WIDTH, requires_grad=True)
    theirs, targets = torchs(ours), torch.randint(VOCABULARY, (23,))
    inputs = [hidden, ours.head.bias, *(p for p in ours.parameters() if p.dim() == 2)]
    losses = full_loss(ours, hidden, targets), theirs(hidden, targets).loss
    torch.testing.assert_close(*losses)
    found, expected = (torch.autograd.grad(loss * 20, inputs) for loss in losses)
    torch.testing.assert_close(found, expected)


def test_biases_of_rare_words_get_gradients_too():
    ours, hidden = adaptive(), torch.randn(17, WIDTH, requires_grad=True)
    targets = torch.randint(VOCABULARY, (17,))
    inputs = [hidden, *ours.parameters()]
    losses = full_loss(ours, hidden, targets), F.cross_entropy(ours(hidden), targets)
    torch.testing.assert_close(*losses)
    found, expected = (torch.autograd.grad(loss, inputs) for loss in losses)
    torch.testing.assert_close(found, expected)


def test_a_cluster_that_no_target_is_in_gets_zeros():
    ours, hidden = adaptive(), torch.randn(4, WIDTH)
    full_loss(ours, hidden, torch.tensor([0, 4, 12, 13])).backward()
    for number, parameter in enumerate(ours.tails.parameters()):
        assert (parameter.grad != 0).any() == (number in (2, 3))
    assert all(parameter.grad is not None for parameter in ours.parameters())


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 39), min_size=1, max_size=5, unique=True),
    st.floats(1, 8),
    st.integers(0, 99),
)
def test_probabilities_sum_to_one(cutoffs, div_value, seed):
    torch.manual_seed(seed)
    config = AdaptiveConfig(cutoffs=tuple(sorted(cutoffs)), div_value=div_value)
    softmax = AdaptiveSoftmax(40, 6, config)
    hidden = 3 * torch.randn(5, 6)
    words = [softmax.log_probabilities(hidden, torch.full((5,), k), 64) for k in range(40)]
    torch.testing.assert_close(torch.stack(words).exp().sum(dim=0), torch.ones(5))
    torch.testing.assert_close(torch.stack(words, dim=1), softmax(hidden).log_softmax(dim=1))


@pytest.mark.parametrize("piece", [1, 20, None])
def test_the_likeliest_words(piece):
    softmax = adaptive()
    hidden = torch.randn(7, 2, WIDTH)
    logs = softmax(hidden.reshape(14, WIDTH)).log_softmax(dim=1).view(7, 2, VOCABULARY)
    sums = logs.sum(dim=1)
    sums[:, [0, 25]] = -torch.inf
    best = sums.topk(9).indices
    ids, found = scoring.likeliest(softmax, hidden, 9, [0, 25], piece=piece)
    assert ids == best.tolist()
    torch.testing.assert_close(
        torch.tensor(found), logs.gather(2, best[:, None].expand(-1, 2, -1)).detach()
    )


def test_by_hand():
    """The second word of the second cluster: half the head's share, then a quarter of it."""
    softmax = AdaptiveSoftmax(7, 4, AdaptiveConfig(cutoffs=(2, 3)))
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.zero_()
        softmax.head.bias.copy_(torch.tensor([1.0, 1.0, 2.0, 4.0]).log())
        softmax.tails[1].bias.copy_(torch.tensor([2.0, 2.0, 1.0, 3.0]).log())
    shares = softmax(torch.randn(1, 4)).softmax(dim=1)[0]
    expected = [1 / 8, 1 / 8, 2 / 8, 1 / 8, 1 / 8, 1 / 16, 3 / 16]
    torch.testing.assert_close(shares, torch.tensor(expected))


def test_what_a_config_makes():
    lstm = LstmConfig(cells=16, projection=8)
    plain = make_softmax(ElmoConfig(lstm=lstm), 9)
    assert isinstance(plain, Softmax) and plain.vocabulary == 9 and plain.capturable
    clusters = AdaptiveConfig(cutoffs=(2, 5))
    made = make_softmax(ElmoConfig(lstm=lstm, vocabulary=9, adaptive=clusters), 9)
    assert made.vocabulary == 9 and not made.capturable
    shapes = {name: tuple(t.shape) for name, t in made.state_dict().items()}
    assert shapes == {
        "head.weight": (4, 8),
        "head.bias": (4,),
        "projections.0": (2, 8),
        "projections.1": (1, 8),  # 8 / 16, but no less than 1
        "tails.0.weight": (3, 2),
        "tails.0.bias": (3,),
        "tails.1.weight": (4, 1),
        "tails.1.bias": (4,),
    }


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"cutoffs": ()}, "adaptive.cutoffs is [], expected 1 to 16 rising numbers"),
        ({"cutoffs": (4, 4)}, "adaptive.cutoffs is [4, 4], expected 1 to 16 rising numbers"),
        ({"cutoffs": (0, 4)}, "adaptive.cutoffs is [0, 4], expected 1 to 16 rising numbers"),
        ({"cutoffs": tuple(range(1, 18))}, "expected 1 to 16 rising numbers"),
        ({"cutoffs": (4,), "div_value": 0.5}, "adaptive.div_value is 0.5, expected 1 to 1000"),
        ({"cutoffs": (4,), "div_value": float("nan")}, "div_value is nan, expected 1 to 1000"),
    ],
)
def test_wrong_clusters(values, sentence):
    with pytest.raises(InputError) as caught:
        AdaptiveConfig(**values)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("vocabulary", [None, 3, 9])
def test_clusters_lie_within_the_vocabulary(vocabulary):
    with pytest.raises(InputError, match=f"below that of the words, vocabulary.*{vocabulary}"):
        ElmoConfig(vocabulary=vocabulary, adaptive=AdaptiveConfig(cutoffs=(3, 9)))


def test_without_values_rows_are_shared_out_by_rank():
    with torch.device("meta"):
        softmax = AdaptiveSoftmax(10_000, 64, AdaptiveConfig(cutoffs=(100, 1000)))
        hidden = torch.empty(1200, 64, requires_grad=True)
        targets = torch.empty(1200, dtype=torch.long)
        parts = list(softmax.parts(hidden, targets))
        full_loss(softmax, hidden, targets).backward()
    # Four powers of ten: two in the head, one in each cluster.
    for part, expected in itertools.zip_longest(parts, (1200, 300, 300)):
        assert len(part.targets) == pytest.approx(expected, rel=0.02)
