"""Streams as a plain program: pair by pair, nothing shared, nothing clever, positions too."""

import itertools

import numpy as np

BEGIN, END, UNKNOWN = 0, 1, 2


def deal(text, shuffle, seed, share, epoch):
    """The sentences of an epoch in their order, and whether each zeroes its row's state."""
    count = text.n_sentences
    rng = np.random.default_rng([seed, epoch])
    order = list(range(count))
    if shuffle == "sentences":
        rng.shuffle(numbers := np.arange(count))
        order = numbers.tolist()
    if shuffle == "documents":
        chosen = rng.permutation(text.n_documents)
        order = [
            sentence
            for document in chosen
            for sentence in range(text.documents[document], text.documents[document + 1])
        ]
    return order, (rng.random(count) < share).tolist()


def pairs_of(text, sentence, vocabulary, reverse):
    """What is read and what is predicted, word by word."""
    words = text.tokens[text.sentences[sentence] : text.sentences[sentence + 1]].tolist()
    whole = [END, *reversed(words), BEGIN] if reverse else [BEGIN, *words, END]
    goals = [word if word < vocabulary else UNKNOWN for word in whole[1:]]
    return list(zip(whole[:-1], goals, strict=True))


def slow_batches(
    text, batch, steps, vocabulary, *, block, reverse=False, shuffle="none", seed=0, reset_share=0.0
):
    """Yield positions and (inputs, targets, resets), of `block` batches between two positions."""
    epoch, place = 0, 0
    order, zeroed = deal(text, shuffle, seed, reset_share, 0)
    rows = [[] for _ in range(batch)]  # (input, target, reset) of all time
    taken = []  # sentence, row, start, reset; and the end
    for number in itertools.count():
        if number % block == 0:
            first = number * steps
            position = {
                "block": np.array([number, epoch, place]),
                "fill": np.array([len(row) for row in rows]),
                "open": np.array([t[:4] for t in taken if t[4] > first], np.int64).reshape(-1, 4).T,
            }
        for row, pairs in enumerate(rows):
            while len(pairs) < (number + 1) * steps:
                if place == len(order):
                    epoch, place = epoch + 1, 0
                    order, zeroed = deal(text, shuffle, seed, reset_share, epoch)
                sentence, reset = order[place], zeroed[place]
                place += 1
                more = pairs_of(text, sentence, vocabulary, reverse)
                taken.append((sentence, row, len(pairs), reset, len(pairs) + len(more)))
                for k, (word, goal) in enumerate(more):
                    pairs.append((word, goal, reset and k == 0))
        now = np.array([pairs[number * steps : (number + 1) * steps] for pairs in rows])
        after = {**position, "skip": np.array([number % block + 1])}
        yield after, (now[..., 0], now[..., 1], now[..., 2].astype(bool))
