"""ELMo on PyTorch: deep contextual word vectors.

The public names are imported on first use, so that ``import torchelmo`` and ``torchelmo --help``
stay quick: torch alone takes seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "BiLM",
    "Elmo",
    "ElmoConfig",
    "InputError",
    "Layers",
    "ScalarMix",
    "State",
    "__version__",
]

if TYPE_CHECKING:
    from torchelmo.config import ElmoConfig
    from torchelmo.elmo import Elmo
    from torchelmo.errors import InputError
    from torchelmo.nn.bilm import BiLM
    from torchelmo.nn.lstm import State
    from torchelmo.nn.output import Layers
    from torchelmo.nn.scalar_mix import ScalarMix
else:
    # Hidden from type checkers, which would take __getattr__ to mean that every name exists.
    _HOMES = {
        "BiLM": "torchelmo.nn.bilm",
        "Elmo": "torchelmo.elmo",
        "ElmoConfig": "torchelmo.config",
        "InputError": "torchelmo.errors",
        "Layers": "torchelmo.nn.output",
        "ScalarMix": "torchelmo.nn.scalar_mix",
        "State": "torchelmo.nn.lstm",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
