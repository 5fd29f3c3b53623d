"""Locks: one holder at a time, gone with it, and of no account on disks that have none."""

import errno
import sys

import pytest

from torchelmo.errors import InputError
from torchelmo.formats import files


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "lock"
    with files.hold_lock(path, "taken: wait"):
        with pytest.raises(InputError, match=r"^taken: wait$"):
            files.hold_lock(path, "taken: wait")
        with path.open("ab") as other:
            assert files.try_lock(other) is False
    with files.hold_lock(path, "taken: wait"), path.open("ab") as other:
        assert files.try_lock(other) is False
    with path.open("ab") as other:
        assert files.try_lock(other) is True


def test_a_lock_that_cannot_be_made(tmp_path):
    with pytest.raises(InputError, match=r"lock cannot be written: No such file"):
        files.hold_lock(tmp_path / "nowhere" / "lock", "taken")


@pytest.mark.skipif(sys.platform == "win32", reason="another call there")
@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOLCK, None), (errno.EOPNOTSUPP, None), (errno.EWOULDBLOCK, False)],
)
def test_disks_without_locks(tmp_path, monkeypatch, number, expected):
    def flock(*_):
        raise OSError(number, "no")

    monkeypatch.setattr("fcntl.flock", flock)
    with (tmp_path / "lock").open("ab") as file:
        assert files.try_lock(file) is expected
    if expected is None:
        files.hold_lock(tmp_path / "lock", "taken").close()
