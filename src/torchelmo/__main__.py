"""`python -m torchelmo` is the command `torchelmo`."""

from torchelmo.apps.cli import main

if __name__ == "__main__":
    main()
