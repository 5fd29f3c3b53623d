import io
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from contextlib import suppress

import numpy as np
import pytest
import torch

from torchelmo.bulk.parts import (
    Partial,
    PartWriter,
    check_space,
    read_sentences,
    read_state,
)
from torchelmo.bulk.reader import Reader
from torchelmo.errors import InputError
from torchelmo.nn.lstm import State

FACTS = {"model": "abc", "layers": "all", "rows": 1}


def window(text="a b\n\nc\n"):
    return Reader(io.BytesIO(text.encode()), "x").window(100, str.split)


def write_part(partial, number=0, state=None):
    vectors = [np.arange(n * 8, dtype=np.float32).reshape(2, n, 4) + 100 * n for n in (2, 0, 1)]
    part = PartWriter(partial, number, window(), token_bytes=2 * 4 * 4)
    for place in (2, 0, 1):  # in any order
        part.write(place, vectors[place])
    part.finish(state)
    part.close()
    return vectors


@pytest.fixture
def partial(tmp_path):
    return Partial(tmp_path / "out.hdf5")


def test_a_part_gives_back_what_was_written(partial):
    with suppress(KeyError), partial:
        vectors = write_part(partial)
        ((path, header),) = partial.parts()
        assert (header.lines, header.tokens, header.blank, header.last) == (3, 3, 1, True)
        found = list(read_sentences(path, (2, 4), "float32"))
        assert [(line, words) for line, words, _ in found] == [(0, ["a", "b"]), (1, []), (2, ["c"])]
        for (_, _, piece), expected in zip(found, vectors, strict=True):
            np.testing.assert_array_equal(piece, expected, strict=True)
        raise KeyError
    assert path.exists()  # an error leaves finished parts


def test_state_is_kept_with_its_part(partial):
    state = State()
    state.put("forward.0", 1, torch.randn(2, 3), torch.randn(2, 5))
    with partial:
        write_part(partial, state=state)
        found = read_state(partial.part(0))
        assert found.rows == 3
        assert found.tensors().keys() == state.tensors().keys()
        assert all(torch.equal(found.tensors()[k], t) for k, t in state.tensors().items())


def test_the_folder_goes_when_all_went_well_or_nothing_was_done(partial):
    with partial:
        partial.begin(FACTS, overwrite=False)
        write_part(partial)
    assert not partial.folder.exists()
    with suppress(KeyError), partial:
        partial.begin(FACTS, overwrite=False)
        PartWriter(partial, 0, window(), token_bytes=4).close()
        raise KeyError
    assert not partial.folder.exists()


def begun(partial):
    with suppress(KeyError), partial:
        partial.begin(FACTS, overwrite=False)
        write_part(partial)
        partial.temporary("part-00000001").write_bytes(b"half")
        raise KeyError
    assert sorted(os.listdir(partial.folder)) == ["lock", "part-00000000", "run.json"]


def test_going_on_needs_the_same_facts(partial):
    begun(partial)
    with (
        pytest.raises(InputError, match=r"unfinished run with layers all: .* --overwrite"),
        partial,
    ):
        partial.begin({**FACTS, "layers": "top"}, overwrite=False)
    with pytest.raises(InputError, match="another model"), partial:
        partial.begin({**FACTS, "model": "other"}, overwrite=False)
    with suppress(KeyError), partial:
        partial.begin(FACTS, overwrite=False)
        assert len(list(partial.parts())) == 1
        raise KeyError
    with partial:
        partial.begin({**FACTS, "layers": "top"}, overwrite=True)
        assert not list(partial.parts())


@pytest.mark.parametrize("keep", [0, 10, 200, -1], ids=["empty", "header", "text", "data"])
def test_a_damaged_part_is_an_error(partial, keep):
    begun(partial)
    data = partial.part(0).read_bytes()
    partial.part(0).write_bytes(data[:keep])
    with pytest.raises(InputError, match="part-00000000 is damaged: delete its folder"), partial:
        list(partial.parts())


def test_a_folder_of_somebody_else_is_left_alone(partial):
    partial.folder.mkdir()
    (partial.folder / "thesis.doc").write_text("!", encoding="utf-8")
    with (
        pytest.raises(InputError, match=r"holds .thesis\.doc., which no unfinished run wrote"),
        partial,
    ):
        pass
    assert (partial.folder / "thesis.doc").exists()


def test_only_one_process_writes_at_a_time(partial):
    with partial:
        with pytest.raises(InputError, match="another process is writing"), Partial(partial.output):
            pass
        code = (
            "from pathlib import Path; from torchelmo.bulk.parts import Partial\n"
            f"with Partial(Path({str(partial.output)!r})): pass"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert "another process is writing" in done.stderr
        assert (partial.folder / "lock").exists()
    with partial:  # the lock is gone with its holder
        pass


def test_a_lock_file_of_a_killed_process_does_not_block(partial):
    partial.folder.mkdir()
    (partial.folder / "lock").write_bytes(b"")
    with partial:
        pass


def test_space_is_checked(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, 5_000_000))
    check_space(tmp_path, 5_000_000, "x")
    with pytest.raises(InputError, match=r"x needs 2\.0 GB, the disk of .* has 5\.0 MB free"):
        check_space(tmp_path, 2 * 10**9, "x")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 0))  # a disk that does not say
    check_space(tmp_path, 2 * 10**9, "x")
