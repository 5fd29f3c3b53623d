import torch

from torchelmo.tasks.modules import BiLstm, FeedForward, VariationalDropout, masked_softmax


def test_variational_dropout_has_one_mask_a_text_and_keeps_the_mean():
    torch.manual_seed(0)
    dropout = VariationalDropout(0.25)
    out = dropout(torch.ones(400, 5, 10))
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert torch.equal(out.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert abs(out.mean().item() - 1) < 0.02
    assert not torch.equal(out[0], out[1])
    ones = torch.ones(2, 3, 4)
    assert torch.equal(dropout.eval()(ones), ones)


def test_padding_changes_nothing_in_a_bilstm():
    torch.manual_seed(0)
    lstm = BiLstm(4, 3)
    short, long = torch.randn(1, 2, 4), torch.randn(1, 5, 4)
    padded = torch.cat([torch.cat([short, torch.full((1, 3, 4), 9.0)], dim=1), long])
    out = lstm(padded, (2, 5))
    assert out.shape == (2, 5, lstm.width) == (2, 5, 6)
    torch.testing.assert_close(out[:1, :2], lstm(short, (2,)))
    torch.testing.assert_close(out[1:], lstm(long, (5,)))
    assert not out[0, 2:].any()


def test_recurrent_weights_begin_orthogonal_and_forget_gates_open():
    lstm = BiLstm(4, 3).lstm
    for gate in lstm.weight_hh_l0_reverse.split(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(3))
    assert lstm.bias_ih_l0.tolist() == [0] * 3 + [1] * 3 + [0] * 6


def test_maxout_and_relu():
    layer = FeedForward(2, (1,), maxout=2)
    with torch.no_grad():
        layer.layers[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        layer.layers[0].bias.zero_()
    assert layer(torch.tensor([[3.0, -1.0], [-5.0, -2.0]])).tolist() == [[3.0], [-2.0]]
    assert (FeedForward(2, (3, 4))(torch.randn(5, 2)) >= 0).all()


def test_masked_softmax():
    scores = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    out = masked_softmax(scores, mask)
    torch.testing.assert_close(out[0, :2], scores[0, :2].softmax(0))
    assert out[0, 2] == 0 and not out[1].any()
