"""Numbering of distinct words, and groups under a token budget."""

from hypothesis import given
from hypothesis import strategies as st

from torchelmo.text.batching import WordTable, by_tokens


@given(st.lists(st.lists(st.sampled_from("a b c d e".split()), max_size=6), max_size=6))
def test_a_table_gives_each_word_one_number(sentences):
    table = WordTable()
    ids = [table.ids(sentence) for sentence in sentences]
    words = list(table)
    assert len(words) == len({w for s in sentences for w in s})
    assert [[words[i] for i in row] for row in ids] == sentences


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 60), st.booleans())
def test_groups_hold_every_sentence_once_within_the_budget(lengths, budget, in_order):
    groups = by_tokens(lengths, budget, in_order=in_order)
    flat = [i for group in groups for i in group]
    assert sorted(flat) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or sum(lengths[i] + 2 for i in group) <= budget
    if in_order:
        assert flat == sorted(flat)
    else:
        assert [lengths[i] for i in flat] == sorted(lengths, reverse=True)
