"""A toy corpus for the tests of this folder, made once."""

import pytest

from pretrain.tiny import toy_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return toy_corpus(tmp_path_factory.mktemp("toy"))
