"""Many sentences to vectors: one function a driver calls, and a driver that streams files.

`embed_batch` is what every driver runs over a batch of sentences; `local.embed_file` runs it over
a file of any size with bounded memory, and goes on after a kill.
"""

from torchelmo.bulk.vectors import embed_batch

__all__ = ["embed_batch"]
