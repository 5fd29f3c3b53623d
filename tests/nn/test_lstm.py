"""State that a caller carries: rows grow, rows beyond a batch are kept, and it can be saved."""

import torch

from torchelmo.nn.lstm import State


def test_rows_are_kept_by_number():
    state = State()
    like = torch.zeros(1, 2)
    assert state.rows == 0
    h, c = state.get("forward.0", 0, 3, like, 5)
    assert h.shape == (3, 2) and c.shape == (3, 5) and not h.any() and not c.any()
    state.put("forward.0", 0, torch.ones(3, 2), torch.ones(3, 5))
    state.put("forward.0", 0, torch.full((1, 2), 2.0), torch.full((1, 5), 2.0))
    h, _ = state.get("forward.0", 0, 4, like, 5)
    assert h[:, 0].tolist() == [2.0, 1.0, 1.0, 0.0]
    state.put("forward.0", 4, torch.full((1, 2), 9.0), torch.full((1, 5), 9.0))
    assert state.rows == 5
    h, _ = state.get("forward.0", 3, 2, like, 5)
    assert h[:, 0].tolist() == [0.0, 9.0]
    again = State.from_tensors(state.tensors())
    torch.testing.assert_close(
        again.get("forward.0", 0, 5, like, 5), state.get("forward.0", 0, 5, like, 5)
    )
    state.reset()
    assert state.rows == 0 and again.rows == 5
