"""What the layers know: sense and tag probes, each run layer by layer beside static vectors.

A probe reads its data (`Wic.read(path)`), asks an embedder for the vectors of the places it is
about, once, and measures every layer: `run(probe, ModelEmbedder(elmo))`.
"""
