"""ELMo written a second time, slowly, in float64 numpy, to test torchelmo against.

It shares no code with torchelmo. `numpy_elmo` is bilm-tf's model, `many_langs` reads
ELMoForManyLangs folders into the same encoder, `make_fixtures` writes `tests/fixtures`.
"""
