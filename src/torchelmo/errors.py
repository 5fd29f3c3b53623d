"""The errors a user can cause, each carrying one sentence that says what to do."""


class InputError(ValueError):
    """Bad input: a file, an option or an argument that cannot be used as given."""


class MissingExtra(ImportError):
    """An optional package is needed.

    >>> str(MissingExtra("Korean tokenisation", package="kiwipiepy", extra="ko"))
    "Korean tokenisation needs kiwipiepy: pip install 'torchelmo[ko]'"
    """

    def __init__(self, what: str, *, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'torchelmo[{extra}]'")
