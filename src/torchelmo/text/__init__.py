"""Raw text to sentences, words, characters and ids; strings and lines in, nothing opens a file."""
