"""Tokenisers: hand-worked cases for every rule, and the properties all of them keep."""

import itertools
import pickle
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchelmo.errors import InputError, MissingExtra
from torchelmo.text import words as module
from torchelmo.text.words import NAMES, Token, get_tokenizer, pieces, surface_tokens

PACKAGES = {"kiwi": ("kiwipiepy",), "fugashi": ("fugashi", "unidic_lite")}

# Every kind of character the rules speak of, so that short random texts meet them often.
ALPHABET = (
    "abnstdmIUSMr 0159.,:;/-+'’\"`&@#%$€()[]<>=*_~!?…—–|\\^·° \t\n\r\u3000\u00a0\x00\x1f\x85\ufeff"
    "\u200b\u200c\u200d\u00ad\u0301\u3099\ufe0f\u20e3éßσЖ가했다ㅋ漢々あがアーﾞ。、「」"
    "ا؟क्ा।กำ👍🏽👨🇰🇷☎©𝒳"
)
SNIPPETS = """
    don't it's we’ll U.S. e.g. Mr. Ph.D. J. 3.14 1,234 10:30 2020-01-01 -5 .5 '90s 'tis http://a.b/c_(d)
    www.x.org a.b@c.de @me #tag :) <3 ... -- `` '' state-of-the-art AT&T n't 's 1️⃣ 👨‍👩‍👧 が צה"ל l·l
""".split()
TEXTS = st.lists(
    st.one_of(st.text(ALPHABET, max_size=8), st.sampled_from(SNIPPETS), st.text(max_size=3)),
    max_size=8,
).map("".join)


def tokenizer(name):
    for package in PACKAGES.get(name, ()):
        pytest.importorskip(package)
    return get_tokenizer(name)


CASES = {
    # clitics
    "I don't think it's Bob's.": "I do n't think it 's Bob 's .",
    "can't won't shan't ain't cannot": "ca n't wo n't sha n't ai n't cannot",
    "We'll see; they've gone, I'm sure you're late": (
        "We 'll see ; they 've gone , I 'm sure you 're late"
    ),
    "I'd've shouldn't've": "I 'd 've should n't 've",
    "Don’t! It’s we’ll I’m": "Do n’t ! It ’s we ’ll I ’m",
    "DON'T IT'S": "DO N'T IT 'S",
    "mother-in-law's U.S.'s (IBM)'s": "mother-in-law 's U.S. 's ( IBM ) 's",
    "'tis 'Twas get 'em the '90s ’til": "'tis 'Twas get 'em the '90s ’til",
    # apostrophes that are no clitic
    "O'Neill rock'n'roll l'homme o'clock y'all": "O'Neill rock'n'roll l'homme o'clock y'all",
    "the dogs' 'quoted' words": "the dogs ' ' quoted ' words",
    # numbers
    "1,234.5 3.14 10% $5 US$5 €3": "1,234.5 3.14 10 % $ 5 US $ 5 € 3",
    "1990s 3rd 10km 5G": "1990s 3rd 10km 5G",
    "10:30 2020-01-01 1/2 01/02/2020": "10:30 2020-01-01 1/2 01/02/2020",
    "-5 (-3.5) +82-10-1234 .5 $.5": "-5 ( -3.5 ) +82-10-1234 .5 $ .5",
    "x=-1 3+4 1990–1995": "x = - 1 3 + 4 1990 – 1995",
    "It cost 10. Then 11.": "It cost 10 . Then 11 .",
    "v1.2.3 m² ½": "v1.2.3 m² ½",
    "١٬٢٣٤٫٥": "١٬٢٣٤٫٥",
    # abbreviations, acronyms, initials
    "U.S. U.S.A. e.g. i.e., a.m. U.S": "U.S. U.S.A. e.g. i.e. , a.m. U.S",
    "Mr. Lee, Dr. Oh, etc. vs. St. Mary": "Mr. Lee , Dr. Oh , etc. vs. St. Mary",
    "Ph.D. M.Sc. J. R. Ewing J.R.Ewing": "Ph.D. M.Sc. J. R. Ewing J.R. Ewing",
    "World War I. So do I.": "World War I . So do I .",
    "U.S.-based the U.S...": "U.S.-based the U.S ...",
    "no. Sun. end.": "no . Sun . end .",
    # words joined inside
    "state-of-the-art pre- -based": "state-of-the-art pre - - based",
    "AT&T R&D a&b and/or": "AT&T R&D a & b and / or",
    "node.js Report.pdf end.Next example.com.": "node.js Report.pdf end . Next example.com .",
    "foo_bar ___ col·lecció a·b": "foo_bar ___ col·lecció a · b",
    # addresses, handles, faces
    "(see https://a.org/x_(y)?z=1#q).": "( see https://a.org/x_(y)?z=1#q ) .",
    "http://a.org, www.b.com! HTTP://C.DE": "http://a.org , www.b.com ! HTTP://C.DE",
    "http:// www. http://)": "http : // www . http : // )",
    "mail a.b-c+d@x.co.uk. a@b": "mail a.b-c+d@x.co.uk . a @ b",
    "@ann_1 #tag #1 C# a@ann": "@ann_1 #tag # 1 C # a @ ann",
    ":) :-( ;) :D :P <3 x:) 10:3": ":) :-( ;) :D :P <3 x : ) 10:3",
    # punctuation
    'He said: "Yes!" (No?) [1]; {a}': 'He said : " Yes ! " ( No ? ) [ 1 ] ; { a }',
    "Wait...what… .. …… ?! !!!": "Wait ... what … .. …… ? ! ! ! !",
    "a--b a—b a – b ------ ===": "a -- b a — b a – b ------ ===",
    "``old'' “new” ‘one’ «two»": "`` old '' “ new ” ‘ one ’ « two »",
    "10°C ©2020 Foo™": "10 ° C © 2020 Foo ™",
    # emoji
    "👍🏽👍 👨‍👩‍👧‍👦! 🇰🇷🇺🇸 1️⃣ ☎️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿": "👍🏽 👍 👨‍👩‍👧‍👦 ! 🇰🇷 🇺🇸 1️⃣ ☎️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    # scripts
    "나는 K팝을, 2020년(작년)에!": "나는 K팝을 , 2020년 ( 작년 ) 에 !",
    "좋았다.재밌다. ㅋㅋㅋ": "좋았다 . 재밌다 . ㅋㅋㅋ",
    "茂林寺というコーヒー。「はい」Tシャツ": "茂 林 寺 という コーヒー 。 「 はい 」 T シャツ",
    "大韓民國은 人々 ２０２０年": "大 韓 民 國 은 人 々 ２０２０ 年",
    "か\u3099く 葛\U000e0100飾": "か\u3099く 葛\U000e0100 飾",
    "مرحبا، كيف حالك؟": "مرحبا ، كيف حالك ؟",
    "नमस्ते दुनिया। สวัสดีครับ": "नमस्ते दुनिया । สวัสดีครับ",
    'צה"ל "שלום"': 'צה"ל " שלום "',
    "e\u0301tude naïve !\u0301 می\u200cخواهم co\u00adop": (
        "e\u0301tude naïve !\u0301 می\u200cخواهم co\u00adop"
    ),
    "a\u200bb \x00x": "a \u200b b \x00 x",
    "": "",
    " \t\n\u3000": "",
}


@pytest.mark.parametrize("text", CASES)
def test_words_cases(text):
    assert get_tokenizer("words").words(text) == CASES[text].split(" ") * bool(CASES[text])


def test_offsets_are_worked_out_by_hand():
    assert get_tokenizer("words")(" It's 10%.") == [
        Token("It", 1, 3),
        Token("'s", 3, 5),
        Token("10", 6, 8),
        Token("%", 8, 9),
        Token(".", 9, 10),
    ]
    assert get_tokenizer("whitespace")("\u3000It's\u00a010%.\x1f") == [
        Token("It's", 1, 5),
        Token("10%.", 6, 10),
    ]
    assert get_tokenizer("codepoints")("é 각") == [Token("é", 0, 1), Token("각", 2, 3)]
    assert get_tokenizer("codepoints").words("e\u0301👍🏽") == ["e", "\u0301", "👍", "🏽"]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
@example(text="")
@example(text="\ud83d\ude00 \ud800a\x00b")
def test_tokens_tile_the_text(name, text):
    tokenize = tokenizer(name)
    tokens = tokenize(text)
    assert all(text[t.start : t.end] == t.text for t in tokens)
    assert all(a.end <= b.start for a, b in itertools.pairwise(tokens))
    assert "".join(t.text for t in tokens) == "".join(text.split())
    assert not any(c.isspace() for t in tokens for c in t.text)
    assert all(t.text for t in tokens)
    assert tokenize.words(text) == [t.text for t in tokens]


@settings(max_examples=500, deadline=None)
@given(text=TEXTS)
def test_words_are_their_own_tokens(text):
    """Tokenising tokens joined by spaces changes nothing: pretokenised text is safe."""
    words = get_tokenizer("words").words
    tokens = words(text)
    assert words(" ".join(tokens)) == tokens


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_nothing_is_looked_up_across_a_space(texts):
    words = get_tokenizer("words").words
    assert words("\n".join(texts)) == [w for text in texts for w in words(text)]


@settings(max_examples=500, deadline=None)
@given(text=TEXTS)
def test_quick_rules_say_what_the_others_say(text):
    """The first three rules are there for speed alone."""
    import regex

    pattern = module._pattern()
    slow = regex.compile("(?V1x)" + pattern.pattern.split("\n|", 3)[3])
    for chunk in text.split():
        assert slow.findall(chunk) == pattern.findall(chunk)


def test_memory_of_chunks_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED_CHUNKS", 10)
    tokenize = module.WordTokenizer()
    tokens = tokenize.words(" ".join(f"word{i}." for i in range(100)) + " " + "x" * 33)
    assert len(tokens) == 201
    assert 0 < len(tokenize._memo) <= 10
    assert "x" * 33 not in tokenize._memo


# A rule that looks further than what it keeps would need hours for these.
@pytest.mark.parametrize(
    "unit",
    [
        "a.",
        "A.",
        "ab.AB.",
        "'",
        "n't",
        "'s",
        "-",
        ".-",
        "-5",
        "1,",
        "a@a.",
        "http://)",
        "http://(a",
        "http://....",
        "#",
        "\u0301",
        "👨\u200d",
        "don't",
        "a'",
    ],
)
def test_a_megabyte_without_spaces(unit):
    text = unit * (1_000_000 // len(unit))
    assert "".join(get_tokenizer("words").words(text)) == text


def test_a_word_of_ten_megabytes():
    text = "a" * 10_000_000
    assert get_tokenizer("words").words(text) == [text]
    assert get_tokenizer("words")(text)[0].end == 10_000_000


def test_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="no tokeniser is called 'word': did you mean 'words'"):
        get_tokenizer("word")
    with pytest.raises(InputError, match="did you mean 'whitespace'"):
        get_tokenizer("white space")


@pytest.mark.parametrize(
    ("name", "missing", "sentence"),
    [
        ("kiwi", "kiwipiepy", "Korean tokenisation needs kiwipiepy: pip install 'torchelmo[ko]'"),
        ("fugashi", "fugashi", "Japanese tokenisation needs fugashi: pip install 'torchelmo[ja]'"),
        (
            "fugashi",
            "unidic_lite",
            "Japanese tokenisation needs unidic-lite: pip install 'torchelmo[ja]'",
        ),
    ],
)
def test_missing_extra(name, missing, sentence, monkeypatch):
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda package: None if package == missing else "here"
    )
    with pytest.raises(MissingExtra) as error:
        get_tokenizer.__wrapped__(name)
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", NAMES)
def test_names_versions_and_pickles(name):
    tokenize = tokenizer(name)
    assert tokenize.name == name
    assert tokenize.version.startswith("1")
    assert pickle.loads(pickle.dumps(tokenize)) is get_tokenizer(name)


def test_analysers_are_loaded_on_first_use():
    code = (
        "import sys; from torchelmo.text.words import get_tokenizer as g, NAMES\n"
        "for n in sys.argv[1:]: g(n)\n"
        "assert not {'kiwipiepy', 'fugashi', 'torch'} & sys.modules.keys()"
    )
    names = [name for name in NAMES if not _missing(name)]
    subprocess.run([sys.executable, "-c", code, *names], check=True)


def _missing(name):
    return any(module.importlib.util.find_spec(p) is None for p in PACKAGES.get(name, ()))


def texts_of(text, spans):
    return [token.text for token in surface_tokens(text, spans)]


def test_surface_tokens():
    assert texts_of("", []) == []
    assert texts_of("ab cd", []) == ["ab", "cd"]
    assert texts_of("abcdef", [(1, 3), (3, 5)]) == ["a", "bc", "de", "f"]
    assert texts_of("abcdef", [(0, 3), (2, 4), (4, 4), (4, 6)]) == ["abcd", "ef"]
    assert texts_of("ab cd", [(0, 5)]) == ["ab", "cd"]
    assert texts_of("e\u0301x", [(0, 1), (1, 2), (2, 3)]) == ["e\u0301", "x"]
    assert texts_of("👍🏽👍", [(0, 1), (1, 2), (2, 3)]) == ["👍🏽", "👍"]


def test_pieces():
    assert list(pieces("ab\ncd\x00")) == [(0, "ab\n"), (3, "cd\ufffd")]
    assert list(pieces("aa bb cc", limit=4)) == [(0, "aa "), (3, "bb "), (6, "cc")]
    assert list(pieces("あ。いう", limit=3)) == [(0, "あ。"), (2, "いう")]
    assert [len(piece) for _, piece in pieces("a" * 2500)] == [1000, 1000, 500]
