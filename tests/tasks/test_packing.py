import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchelmo.tasks.packing import flatten, pack, pad, unpack

LENGTHS = [(3,), (2, 5), (1, 4, 4, 2), (7, 7, 1, 3, 7)]


def texts(lengths, extra=0):
    torch.manual_seed(0)
    return torch.randn(len(lengths), max(lengths) + extra, 3, requires_grad=True)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("extra", [0, 2])
def test_texts_are_packed_as_torch_packs_them(lengths, extra):
    values = texts(lengths, extra)
    expected = pack_padded_sequence(values, torch.tensor(lengths), True, enforce_sorted=False)
    packed = pack(values, lengths)
    assert torch.equal(packed.batch_sizes, expected.batch_sizes)
    # Texts of one length may stand in another order: compare what comes back.
    back = unpack(packed.data * 2, lengths, values.shape[1])
    theirs, _ = pad_packed_sequence(
        expected._replace(data=expected.data * 2), True, total_length=values.shape[1]
    )
    assert torch.equal(back, theirs)
    weights = torch.randn_like(back)
    (own,) = torch.autograd.grad((back * weights).sum(), values)
    (other,) = torch.autograd.grad((theirs * weights).sum(), values)
    assert torch.equal(own, other)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_flat_rows_are_the_texts_one_after_the_other(lengths):
    values = texts(lengths)
    flat = flatten(values, lengths)
    assert torch.equal(flat, torch.cat([v[:n] for v, n in zip(values, lengths, strict=True)]))
    back = pad(flat, lengths)
    assert torch.equal(flatten(back, lengths), flat)
    for row, length in zip(back, lengths, strict=True):
        assert not row[length:].any()
    (gradient,) = torch.autograd.grad(back.sum(), values)
    assert torch.equal(gradient, (back != 0).float())
