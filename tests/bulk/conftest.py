"""A tiny model, once as an object and once as a folder."""

import pytest

from bulk.tiny import tiny_model
from torchelmo.elmo import Elmo
from torchelmo.formats import native


@pytest.fixture(scope="session")
def elmo():
    return Elmo(tiny_model())


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    native.write(tiny_model(), folder)
    return folder
