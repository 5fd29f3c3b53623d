import pickle

import pytest
import torch
from safetensors.torch import save_file

from torchelmo.errors import InputError
from torchelmo.formats import cove


@pytest.fixture(scope="module")
def lstm():
    torch.manual_seed(0)
    return torch.nn.LSTM(300, 300, num_layers=2, bidirectional=True, batch_first=True)


def same(found, lstm):
    expected = lstm.state_dict()
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], value) for name, value in expected.items()
    )


def test_the_names_and_shapes_are_those_of_torch(lstm):
    assert cove.expected() == {n: tuple(t.shape) for n, t in lstm.state_dict().items()}


def test_every_way_it_was_saved(lstm, tmp_path):
    plain = lstm.state_dict()
    module = {f"rnn.{name}": value for name, value in plain.items()}
    torch.save(plain, tmp_path / "MT-LSTM.pth")
    torch.save(plain, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.save({**module, "vectors.weight": torch.zeros(3, 300)}, tmp_path / "module.pt")
    save_file(module, tmp_path / "cove.safetensors")
    for name in ("MT-LSTM.pth", "old.pth", "module.pt", "cove.safetensors"):
        assert same(cove.read(tmp_path / name), lstm), name


def test_refusals(lstm, tmp_path):
    def refused(name, reason):
        with pytest.raises(InputError, match=reason):
            cove.read(tmp_path / name)

    refused("gone.pth", r"there is no file .*gone.pth: CoVe's weights \(MT-LSTM.pth\)")
    torch.save({"weight_ih_l0": torch.zeros(1200, 300)}, tmp_path / "part.pth")
    refused("part.pth", r"has none for 'weight_hh_l0' of shape \(1200, 300\)")
    torch.save(torch.nn.LSTM(50, 300, num_layers=2).state_dict(), tmp_path / "narrow.pth")
    refused("narrow.pth", r"has \(1200, 50\) for 'weight_ih_l0' of shape \(1200, 300\)")
    (tmp_path / "pickled.pth").write_bytes(pickle.dumps({"weight": 1}))
    refused("pickled.pth", "is not a file of torch.save")
    torch.save({"rnn": torch.nn.Linear(1, 1)}, tmp_path / "m.pth")
    refused("m.pth", "only tensors are ever loaded")
