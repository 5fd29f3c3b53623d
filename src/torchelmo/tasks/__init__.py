"""The paper's downstream systems, trained and used with and without ELMo."""
