"""Tables of the packaged models for scripts/docs.py; a result that is not there leaves no trace.

Files are named by what was measured and by the model: analysis/wic-en-small.json,
models/perplexity-en-small.json. A section has its heading inside, so that none stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
MODELS = ("en-small", "en-original", "ko-small")
CURVES = ("en-small", "en-original")
LANGUAGES = {"en": "English", "ko": "Korean"}
STATIC = "GloVe"
CUTS = {"kiwi": "morphemes (kiwi)", "words": "eojeol"}
SPELLINGS = {"bytes": "bytes", "codepoints": "code points", "jamo": "jamo"}
TEXTS = {"all": "Wikipedia and books", "wiki-1": "Wikipedia alone"}
OPTIONS = ("batch", "unroll", "learning_rate", "dropout", "weight_decay")
NAMED = {
    "batch": "rows",
    "unroll": "tokens a row",
    "learning_rate": "learning rate",
    "weight_decay": "weight decay",
}
PAPER = {  # perplexity of the biLM before and after an epoch, in the paper
    "conll2003": (103.2, 46.3),
    "sst": (131.5, 78.6),
    "snli": (72.1, 16.8),
    "squadshifts-contexts": (99.1, 43.5),
    "squadshifts-questions": (158.2, 52.0),
}


def find(name: str) -> dict | None:
    """Return the result file `results/NAME.json` if it is there."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def by_model(name: str, language: str = "") -> dict[str, dict]:
    """Return the results NAME-MODEL, by model."""
    found = {model: find(f"{name}-{model}") for model in MODELS if model.startswith(language)}
    return {model: result for model, result in found.items() if result is not None}


def rows(*lines: Sequence[object]) -> list[str]:
    """Return a table's lines, the first being its head."""
    made = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    return [made[0], "|---" * len(lines[0]) + "|", *made[1:]] if made[1:] else []


def section(title: str, *parts: Iterable[str] | str) -> str:
    """Return a heading and its paragraphs and tables; nothing if they are all empty.

    >>> section("Birds", ["| heron |", "|---|"], "")
    '### Birds\\n\\n| heron |\\n|---|\\n'
    >>> section("Birds", [])
    ''
    """
    blocks = ["\n".join([part] if isinstance(part, str) else part) for part in parts]
    filled = [block for block in blocks if block]
    return "\n\n".join([f"### {title}", *filled]) + "\n" if filled else ""


def layers(
    probe: str, language: str, figures: Sequence[str], named: Callable[[str], str] = str
) -> list[str]:
    """Return a table of a probe: a row a layer and baseline, a column a model and figure."""
    found = by_model(f"analysis/{probe}", language)
    if not found:
        return []
    groups = {model: one["values"]["layers"] for model, one in found.items()}
    last = next(iter(found.values()))
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    has = [
        f for f in figures if any(f in row for group in groups.values() for row in group.values())
    ]
    head = [last["data"], *(f"{model}, {named(f)}" for model in found for f in has)]
    best = {
        (model, f): max((row[f] for row in group.values() if f in row), default=None)
        for model, group in groups.items()
        for f in has
    }

    def cell(model: str, row: dict, figure: str) -> str:
        if figure not in row:
            return ""
        text = f"{row[figure]:.1f}"
        return f"**{text}**" if row[figure] == best[model, figure] else text

    lines = [head]
    for name in names:
        label = layer_name(name)
        lines.append([label, *(cell(m, groups[m].get(name, {}), f) for m in found for f in has)])
    # What needs no model is the same beside each of them.
    for name in dict.fromkeys(n for one in found.values() for n in one["values"]["baselines"]):
        given = [one["values"]["baselines"].get(name, {}) for one in found.values()]
        lines.append([name, *(f"{row[f]:.1f}" if f in row else "" for row in given for f in has)])
    return rows(*lines)


def layer_name(name: str) -> str:
    """Return a layer's name for people.

    >>> layer_name("0"), layer_name("2"), layer_name("mix")
    ('layer 0, spelling alone', 'layer 2', 'best mix')
    """
    if name == "mix":
        return "best mix"
    return f"layer {name}" + ", spelling alone" * (name == "0") if name.isdigit() else name


def trained() -> str:
    """What each model read, and how fast."""
    lines: list[Sequence[object]] = [
        ("model", "text", "tokens, each direction", "tokens a second", "machine")
    ]
    for model in MODELS:
        found = find(f"pretrain/{model}")
        if found is not None:
            values, text = found["values"], found["data"].split(";")[0]
            read, speed = values["curve"][-1]["tokens"], values["tokens_per_second"]["median"]
            lines.append((model, text, f"{read / 1e6:,.0f} M", f"{speed:,}", found["hardware"]))
    curves = (
        f"![{model}: perplexity while training](images/{model}.svg)"
        for model in CURVES
        if find(f"pretrain/{model}") is not None
    )
    return section("Training", rows(*lines), "\n\n".join(curves))


def perplexity() -> str:
    """How well the models predict text, read on and on and sentence by sentence."""
    lines: list[Sequence[object]] = [
        (
            "model, text",
            "start",
            "bits per character",
            "perplexity (forward / backward)",
            "per word",
            "unknown",
        )
    ]
    for model, found in by_model("models/perplexity").items():
        for text, starts in found["values"].items():
            for start, one in starts.items():
                lines.append(
                    (
                        f"{model}, {text}",
                        start,
                        f"{one['bits_per_character']:.3f}",
                        f"{one['perplexity']:.1f} ({one['forward']:.1f} / {one['backward']:.1f})",
                        f"{one['perplexity_per_word']:,.0f}",
                        f"{one['unknown'] / one['tokens']:.1%}",
                    )
                )
    about = (
        "Warm: sentences read on and on, as in training. Cold: each sentence from a zero state, as "
        "`embed` reads it. Perplexities of models with other words cannot be compared; bits per "
        "character can, within a language, if about as many words are unknown: these are predicted "
        "as such, not spelt (in the trials of ways to cut Korean they are)."
    )
    table = rows(*lines)
    return section("Prediction", table, about if table else "")


def wic() -> str:
    """Word in context."""
    tables = [layers("wic", language, ("test", "dev", "tune")) for language in LANGUAGES]
    note = (
        "Accuracy in per cent of a threshold on the cosine, tuned on the parts named first "
        "(`tune`); the best mix is chosen there too. Published for ELMo: 57.7 on English "
        "WiC's test part."
    )
    return section("Is it the same sense? (WiC, KoBEST)", *tables, note if any(tables) else "")


def wsd() -> str:
    """Word senses."""
    table = layers("wsd", "en", ("ALL", "ALL without semeval2007", "semeval2007"))
    note = (
        "F1 in per cent, nearest mean of SemCor's vectors. In the paper: first sense 65.9, first "
        "layer 67.4, second 69.0."
    )
    return section("Which sense of WordNet?", table, note if table else "")


def homographs() -> str:
    """Korean homographs."""
    table = layers("homographs", "ko", ("centroid", "neighbour"))
    note = (
        "Accuracy in per cent, each sentence left out in turn: nearest centroid of a sense, and "
        "nearest sentence."
    )
    return section("Which of the homographs?", table, note if table else "")


def pos() -> str:
    """Parts of speech by a linear probe."""
    tables = [
        layers(probe, language, ("test", "test unseen", "dev", "dev unseen"))
        for language in LANGUAGES
        for probe in ("pos", "pos-xpos")
    ]
    note = (
        "Accuracy in per cent of softmax regression on the frozen vectors; unseen: words that the "
        "training part has not. In the paper, on the Penn Treebank: first layer 97.3, second 96.8."
    )
    return section("Parts of speech", *tables, note if any(tables) else "")


def forms() -> str:
    """The twenty examples of a language, in layer 0."""
    from torchelmo.analysis.forms import Forms

    parts: list[list[str] | str] = []
    for language, name in LANGUAGES.items():
        found = find(f"analysis/forms-{language}-small")
        if found is None:
            continue
        first = found["values"]["layers"]["0"]
        lines: list[Sequence[object]] = [("", "form", "kin, cosine", "nearest other, cosine", "")]
        for item in Forms.read(Path(language)).items:
            kin, *others = first["cosines"][f"{item.form} {item.kin}"]
            place = max(range(len(others)), key=others.__getitem__)
            lines.append(
                (
                    item.kind,
                    item.form,
                    f"{item.kin} {kin:.2f}",
                    f"{item.others[place]} {others[place]:.2f}",
                    "" if kin > others[place] else "other nearer",
                )
            )
        share = f"{name}: {first['kin']:.0f} % of the forms are nearer to their kin in layer 0"
        rest = "; ".join(
            f"{who} {row['kin']:.0f} %" for who, row in found["values"]["baselines"].items()
        )
        parts += [f"{share} ({rest}).", rows(*lines)]
    return section("Forms of a word, by spelling alone", *parts)


def worth() -> str:
    """What context is worth: the same probes without it."""
    asked = (
        ("WiC, accuracy", "wic-en-small", "test"),
        ("WSD over ALL, F1", "wsd-en-small", "ALL"),
        ("English tags, accuracy", "pos-en-small", "test"),
        ("neighbours, English", "neighbours-en-small", "same"),
        ("KoBEST WiC, accuracy", "wic-ko-small", "test"),
        ("Korean homographs, accuracy", "homographs-ko-small", "centroid"),
        ("Korean tags, accuracy", "pos-ko-small", "test"),
        ("neighbours, Korean", "neighbours-ko-small", "same"),
    )
    lines: list[Sequence[object]] = [
        ("", "without vectors", "GloVe 6B 50d", "layer 0", "layer 1", "layer 2", "average")
    ]
    for label, name, figure in asked:
        found = find(f"analysis/{name}")
        if found is None or figure not in found["values"]["layers"]["0"]:
            continue
        baselines = found["values"]["baselines"]
        plain = [row[figure] for who, row in baselines.items() if not who.startswith(STATIC)]
        static = [row[figure] for who, row in baselines.items() if who.startswith(STATIC)]
        by_layer = found["values"]["layers"]
        cells = [
            max(plain, default=None),
            max(static, default=None),
            *(by_layer.get(layer, {}).get(figure) for layer in ("0", "1", "2", "average")),
        ]
        lines.append((label, *("" if cell is None else f"{cell:.1f}" for cell in cells)))
    note = (
        "Per cent. Without vectors: the commoner answer, the first sense, the word's commonest "
        "tag, chance. Layer 0 knows a word's spelling alone."
    )
    if any(line[2] for line in lines[1:]):
        note += " GloVe: the better of the word's vector and the mean over its sentence."
    else:
        lines = [(*line[:2], *line[3:]) for line in lines]
    table = rows(*lines)
    return section("What context is worth", table, note if table else "")


def loading() -> str:
    """How long a packaged model takes to load."""
    lines: list[Sequence[object]] = [
        ("seconds, median", "loading it", "importing torchelmo and torch before")
    ]
    hardware = ""
    for model, found in by_model("models/load").items():
        one, hardware = found["values"], found["hardware"]
        lines.append((model, f"{one['load']:.2f}", f"{one['import']:.2f}"))
    table = rows(*lines)
    return "\n".join([*table, "", f"Measured on {hardware}.", ""]) if table else ""


def finetuning() -> str:
    """Perplexity before and after an epoch on the text of a task."""
    lines: list[Sequence[object]] = [
        (
            "text",
            "tokens to train / to measure",
            "perplexity before",
            "after",
            "bits per character",
            "the paper's biLM",
        )
    ]
    facts = None
    for name, (before, after) in PAPER.items():
        found = find(f"models/finetuning-{name}")
        if found is None:
            continue
        facts = found
        one = found["values"]
        old, new = one["before"], one["after"]
        lines.append(
            (
                found["data"],
                f"{one['tokens']:,} / {old['tokens']:,}",
                f"{old['perplexity']:.1f} ({old['forward']:.1f} / {old['backward']:.1f})",
                f"**{new['perplexity']:.1f}** ({new['forward']:.1f} / {new['backward']:.1f})",
                f"{old['bits_per_character']:.3f} → {new['bits_per_character']:.3f}",
                f"{before} → {after}",
            )
        )
    if facts is None:
        return ""
    options = facts["values"]["options"]
    note = (
        f"{facts['model']}: one epoch, learning rate {options['learning_rate']:g}, dropout "
        f"{options['dropout']:g}, {options['batch']} rows of {options['unroll']} words, on "
        f"{facts['hardware']}. In brackets: forward / backward. The paper's model is larger, its "
        "vocabulary another and (SNLI, SQuAD) its text too: its figures show how much an epoch "
        "gives, not what to expect."
    )
    return "\n".join(["## Measured", "", *rows(*lines), "", note, ""])


def neighbours() -> str:
    """Nearest neighbours in context, by language."""
    from torchelmo.analysis.neighbours_table import to_markdown

    parts = []
    for language, name in LANGUAGES.items():
        found = find(f"analysis/neighbours-{language}-small")
        if found is not None:
            table = to_markdown(found["values"]["neighbours"])
            parts.append(f"## {name}\n\n{found['model']}; {found['data']}.\n\n{table}")
    return "\n".join(parts) or "No model is packaged yet.\n"


def trials() -> str:
    """Short trainings that the recipes were chosen by, a section a language."""
    return "\n".join(part for part in (korean_trials(), english_trials()) if part)


def korean_trials() -> str:
    """Ways to cut and to spell Korean, compared by short trainings."""
    found = find("models/trials-ko")
    if found is None:
        return ""
    lines: list[Sequence[object]] = [
        (
            "tokens, spelling",
            "bits per character, warm / cold",
            "unknown",
            "KoBEST WiC, layers 0 / 1 / 2",
            "homographs, layers 0 / 1 / 2",
        )
    ]
    for one in found["values"].values():
        text, probes = one["valid"]["wiki"], one["probes"]
        bits = [text[start]["bits_per_character_spelt"] for start in ("warm", "cold")]
        changed = "".join(f", {change.partition('.')[2]}" for change in one["set"])
        lines.append(
            (
                f"{CUTS[one['text']]}, {SPELLINGS[one['characters']]}{changed}",
                " / ".join(f"{one:.3f}" for one in bits),
                f"{text['unknown_percent']:.1f}%",
                *(
                    " / ".join(f"{probes[probe]['layers'][n][figure]:.1f}" for n in "012")
                    for probe, figure in (("wic", "dev"), ("homographs", "centroid"))
                ),
            )
        )
    runs = {(one["text"], one["characters"]): one for one in reversed(found["values"].values())}
    cut, whole = runs["kiwi", "jamo"], runs["words", "jamo"]
    (fewer, known, senses), (more, unknown, fewer_senses) = map(_trial, (cut, whole))
    follows = (
        f"Morphemes by kiwi it is: with the same spelling they take {1 - fewer / more:.0%} fewer "
        f"bits than eojeol, leave {known:.1f} instead of {unknown:.1f} % of the tokens unknown, "
        f"and tell {senses - fewer_senses:.1f} points more homographs apart. The three spellings "
        "are within noise of one another: half a per cent of the bits, about a standard error of "
        "either probe, with one run each. ko-small has morphemes and bytes, which need no list of "
        "characters."
    )
    commonest = cut["probes"]["homographs"]["baselines"]["majority"]["centroid"]
    note = (
        f"{cut['tokens'] / 1e6:.0f} M tokens each ({cut['epochs']:.1f} epochs of morphemes, "
        f"{whole['epochs']:.1f} of eojeol) on one {found['hardware']}, {cut['vocabulary']:,} "
        "targets, Wikipedia held out. Bits include those to spell unknown words and to place the "
        "spaces, so that all rows compare. WiC: accuracy on the development part, 610 pairs (a "
        "standard error of two points). Homographs: nearest centroid, test sentences left out; "
        f"each word's commonest sense gives {commonest:.1f}."
    )
    return "\n".join(["## How Korean is cut", "", follows, "", *rows(*lines), "", note, ""])


def english_trials() -> str:
    """Settings of training, compared by short trainings and one longer."""
    found = find("models/trials-en")
    if found is None:
        return ""
    values, before = found["values"], find("pretrain/small-h200")
    base, long = values["base"], values["long"]
    lines: list[Sequence[object]] = [
        (
            "",
            "perplexity, warm / cold",
            "bits per character",
            "books: perplexity",
            "WiC, layers 0 / 1 / 2",
        )
    ]
    for one in values.values():
        wiki, books = one["valid"]["wiki"], one["valid"]["books"]
        wic = one["probes"]["wic"]["layers"]
        lines.append(
            (
                _changes(one, base),
                _starts(wiki, "perplexity", 1),
                _starts(wiki, "bits_per_character", 3),
                _starts(books, "perplexity", 1),
                " / ".join(f"{wic[layer]['dev']:.1f}" for layer in "012"),
            )
        )

    def change(one: dict, other: dict, start: str = "warm", text: str = "wiki") -> str:
        new, old = (run["valid"][text][start]["perplexity"] for run in (one, other))
        return f"{new / old - 1:+.1%}"

    rate, faster, decay = (values[name] for name in ("rate-5e-3", "rate-1e-2", "decay-.01"))
    rows_of_40, rows_of_80 = values["512x40-5e-3"], values["256x80-5e-3"]
    none, more, dropout = values["reset-0"], values["reset-.3"], values["dropout-.1"]
    said = [
        f"A learning rate of {rate['train']['learning_rate']} instead of "
        f"{base['train']['learning_rate']} changes the perplexity most: {change(rate, base)}.",
        f"{faster['train']['learning_rate']:g} gives {change(faster, rate)} more.",
        f"{rows_of_40['train']['batch']} rows of {rows_of_40['train']['unroll']} tokens help a "
        f"warm start ({change(rows_of_40, rate)}) and not a cold one "
        f"({change(rows_of_40, rate, 'cold')}), {rows_of_80['train']['batch']} rows of "
        f"{rows_of_80['train']['unroll']} help it most ({change(rows_of_80, rate)} and "
        f"{change(rows_of_80, rate, 'cold')}).",
        f"A weight decay of {decay['train']['weight_decay']} changes nothing "
        f"({change(decay, rate)}), and keeps what is never read from staying as it began.",
        f"With {base['train']['reset_share']:.0%} of the sentences begun from a zero state a warm "
        f"start is a little worse ({change(base, none)}) and a cold one better "
        f"({change(base, none, 'cold')}); {more['train']['reset_share']:.0%} give no more "
        f"({change(more, base)} and {change(more, base, 'cold')}).",
        f"Leaving out a dropout of {dropout['train']['dropout']} gives {change(base, dropout)}",
    ]
    if before is not None:
        final, also = before["values"]["final"], before["values"]["also"]["books.valid"]
        recipe = before["values"]["recipe"]
        run = {
            **long,
            "tokens": before["values"]["curve"][-1]["tokens"],
            "train": {
                **{name: recipe["train"][name] for name in OPTIONS},
                "reset_share": recipe["data"]["reset_share"],
            },
            "valid": {"wiki": {"warm": final}, "books": {"warm": also}},
        }
        lines.append(
            (
                _changes(run, base),
                _starts(run["valid"]["wiki"], "perplexity", 1),
                _starts(run["valid"]["wiki"], "bits_per_character", 3),
                _starts(run["valid"]["books"], "perplexity", 1),
                "",
            )
        )
        said[-1] += (
            f", after {long['tokens'] / 1e6:.0f} M tokens of Wikipedia alone still "
            f"{change(long, run)}, but {change(long, run, text='books')} on books, of which that "
            "model has read none"
        )
    said[-1] += "."
    note = (
        f"The first row: {base['tokens'] / 1e6:.0f} M tokens ({base['epochs']:.1f} epochs) of "
        f"{TEXTS[base['text']]}, {base['vocabulary']:,} targets, on one {found['hardware']}; the "
        "others say what they change. Held-out text is Wikipedia's; books are another kind. One "
        "run each: WiC (accuracy on the development part, 638 pairs) has a standard error of "
        "two points."
    )
    table = rows(*lines)
    return "\n".join(
        ["## Settings of training, tried on English", "", " ".join(said), "", *table, "", note, ""]
    )


def _changes(one: dict, base: dict) -> str:
    """Return what a trial has another way than the first; of the first, all."""
    old, new = base["train"], one["train"]
    said = [f"{NAMED.get(n, n)} {new[n]:g}" for n in new if one is base or new[n] != old[n]]
    if one["text"] != base["text"]:
        said.append(f"{TEXTS[one['text']]}, {one['tokens'] / 1e6:.0f} M tokens")
        said.append(f"{one['vocabulary']:,} targets")
    return ", ".join(said)


def _starts(text: dict, figure: str, digits: int) -> str:
    """Return a figure from a warm and, if there is one, from a cold start."""
    starts = (start for start in ("warm", "cold") if start in text)
    return " / ".join(f"{text[start][figure]:.{digits}f}" for start in starts)


def _trial(one: dict) -> tuple[float, float, float]:
    """Return bits per character, per cent unknown, and homographs told apart by the top layer."""
    text = one["valid"]["wiki"]
    bits = text["warm"]["bits_per_character_spelt"]
    senses = one["probes"]["homographs"]["layers"]["2"]["centroid"]
    return bits, text["unknown_percent"], senses


def models() -> str:
    """All that is known of the packaged models."""
    parts = [trained(), perplexity(), worth(), wic(), wsd(), homographs(), pos(), forms()]
    filled = [part for part in parts if part]
    return "\n".join(["## Measured\n", *filled]) if filled else ""
