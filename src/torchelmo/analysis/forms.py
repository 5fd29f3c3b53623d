"""Forms of words: is an inflected, derived, misspelt or unseen form nearer to its kin than to
others?

Words stand alone, so layer 0 is what is meant; the other layers show what a sentence of one word
does to it. An item counts if its kin is nearer, by cosine, than all three distractors, the first
of which looks like the form. The items here are ours; others can be read from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchelmo.analysis import files
from torchelmo.analysis.embedders import Embedder
from torchelmo.analysis.files import Text
from torchelmo.analysis.nearest import cosines
from torchelmo.analysis.places import Marked
from torchelmo.analysis.results import Values, percent
from torchelmo.errors import InputError

KINDS = ("inflected", "derived", "misspelt", "unseen")

# Kind, form, kin, distractors.
ENGLISH = """
inflected walked walk wallet river green
inflected dogs dog doubt table cloud
inflected children child chill window engine
inflected running run rust morning paper
inflected happier happy harbour bridge seven
derived doggy dog dodge paper north
derived teacher teach teapot marble sudden
derived kindness kind kidney window stone
derived unhappy happy unity carbon street
derived readable read reason winter glass
misspelt recieve receive recipe garden yellow
misspelt goverment government gourmet kitchen silver
misspelt definately definitely defence mountain purple
misspelt tomorow tomorrow tomato machine century
misspelt langauge language luggage village orange
unseen microcamera camera micron velvet harbour
unseen superquickly quickly superb forest twelve
unseen antirobotic robotic antique flower eleven
unseen Londonesque London Logan pepper Tuesday
unseen unfriendliest friendly unfold copper autumn
"""
KOREAN = """
inflected 학교에서 학교 학기 바람 연필
inflected 먹었다 먹는다 먹구름 강물 노랑
inflected 아름다운 아름답다 아르바이트 도로 숫자
inflected 사람들이 사람 사탕 구름 기차
inflected 달렸다 달린다 달력 우유 의자
derived 선생님 선생 선거 나무 시계
derived 행복하다 행복 행정 냄비 파도
derived 자유롭다 자유 자두 지붕 병원
derived 사랑스럽다 사랑 사막 전화 우표
derived 가위질 가위 가을 엽서 기온
misspelt 괜찬다 괜찮다 괜히 바구니 여름
misspelt 설겆이 설거지 설탕 라디오 도시
misspelt 떡볶기 떡볶이 떡잎 자동차 소설
misspelt 않녕하세요 안녕하세요 않는다 고양이 건물
misspelt 김치찌게 김치찌개 김포 우산 회의
unseen 서울스럽다 서울 서랍 연기 감자
unseen 초고속전화기 전화기 초록 마늘 역사
unseen 인형놀이터 놀이터 인구 설탕 법원
unseen 커피중독자 커피 커튼 바위 온도
unseen 눈사람마을 눈사람 눈치 은행 잡지
"""
OWN = {"en": ENGLISH, "ko": KOREAN}


class Item(NamedTuple):
    """A form, its kin, and words it has nothing to do with."""

    kind: str
    form: str
    kin: str
    others: tuple[str, ...]


class Forms:
    """The probe: items."""

    metric = "share, %, of forms nearer to their kin than to every distractor, by cosine"

    def __init__(self, items: Sequence[Item], name: str = "forms") -> None:
        """Take the items."""
        self.items, self.name = items, name

    @classmethod
    def read(cls, path: Path, *, dev: bool = False) -> Forms:
        """Take our own items, `en` or `ko`, or read a file: kind, form, kin, distractors a line."""
        own = OWN.get(str(path))
        if own is not None and not path.exists():
            return cls(read(Text(str(path), own.strip().encode())), f"forms, {path}")
        if not path.exists():
            raise InputError(f"there is no file {path}: give one, or {' or '.join(OWN)}")
        return cls(read(files.read(path, ["*"])["*"]), path.name)

    def describe(self) -> str:
        """Say what the data is."""
        return f"{self.name}: {len(self.items)} items"

    def baselines(self) -> Values:
        """Return what chance gives."""
        share = np.mean([1 / (1 + len(item.others)) for item in self.items])
        return {"chance": {"kin": percent(share)}}

    def measure(self, embedder: Embedder) -> Values:
        """Return shares by layer and kind, and each item's cosines with its kin and the others."""
        words = [word for item in self.items for word in (item.form, item.kin, *item.others)]
        vectors = embedder.embed([Marked(word, ((0, len(word)),), (word,)) for word in words])
        out = {}
        for name, layer in vectors.each():
            row, near, shown = 0, [], {}
            for item in self.items:
                end = row + 2 + len(item.others)
                (scores,) = cosines(layer[row : row + 1], layer[row + 1 : end])
                near.append(bool(scores[0] > scores[1:].max()))
                shown[f"{item.form} {item.kin}"] = [round(float(score), 3) for score in scores]
                row = end
            kinds = {
                kind: [n for n, i in enumerate(self.items) if i.kind == kind] for kind in KINDS
            }
            out[name] = {
                "kin": percent(np.mean(near)),
                **{
                    k: percent(np.mean([near[n] for n in rows]))
                    for k, rows in kinds.items()
                    if rows
                },
                "cosines": shown,
            }
        return out


def read(text: Text) -> list[Item]:
    """Read items: a kind, a form, its kin and one distractor or more a line, by white space."""
    out = []
    for line, row in text.lines():
        cells = row.split()
        if len(cells) < 4:
            raise text.wrong(line, "expected a kind, a form, its kin and a distractor")
        if cells[0] not in KINDS:
            raise text.wrong(line, f"the kind {cells[0]!r}, expected one of {', '.join(KINDS)}")
        out.append(Item(cells[0], cells[1], cells[2], tuple(cells[3:])))
    if not out:
        raise InputError(f"{text.name} is empty: expected items")
    return out
