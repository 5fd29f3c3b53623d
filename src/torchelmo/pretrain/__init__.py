"""From raw text to a trained biLM: corpus, streams, objective, loop, checkpoints, fine-tuning."""
