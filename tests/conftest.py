"""Folders that tests read: our own fixtures and, where present, the originals' data."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Without a GPU, Triton's kernels run in its interpreter; they ask for it when they are defined.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples in every run; `--hypothesis-profile=default` draws others.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


def repository_root() -> Path:
    """The nearest folder above this file that holds the repository."""
    here = Path(__file__).resolve()
    for folder in here.parents:
        if (folder / "pyproject.toml").exists() or (folder / ".git").exists():
            return folder
    return here.parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """`../shared` beside the repository: data of the original programs, not distributed with it."""
    folder = repository_root().parent / "shared"
    if not folder.is_dir():
        pytest.skip("the originals' data (../shared) is not here")
    return folder


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """`tests/fixtures`: tiny models with the outputs the numpy reference gives for them."""
    return repository_root() / "tests" / "fixtures"
