"""The network: bricks that know torch, the config and `ops`, and nothing of files or text."""
