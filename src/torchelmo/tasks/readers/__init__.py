"""Readers of the tasks' files, one file a format.

Each `read_...` takes a path and yields the frozen examples of `examples.py`, in file order. A path
may name a member of an archive: `ner.tar.xz:ner/conll2003/eng.train` (see `source.py`). A wrong
line raises `InputError` with the file, the line and the reason.
"""
