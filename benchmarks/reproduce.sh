#!/usr/bin/env bash
# An English model from its texts to its result files, on one GPU:
#
#     bash benchmarks/reproduce.sh en-original TEXTS TASKS OUT [more of `torchelmo pretrain`]
#
# The model is en-small or en-original. TEXTS has wiki-1.txt.xz, wiki-2.txt.xz, books-1.txt.xz,
# wiki.valid.txt and books.valid.txt; TASKS has ctx.tar.xz (WiC), wsd.tar.xz and pos.tar.xz. OUT
# gets the corpora, the run and the result files. Corpora that are there are not made again, and a
# training that was stopped goes on.
set -euo pipefail
if [ $# -lt 4 ]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
name=$1 texts=$2 tasks=$3 out=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
wiki=("$texts/wiki-1.txt.xz" "$texts/wiki-2.txt.xz")
valid=(--valid "$texts/wiki.valid.txt")
mkdir -p "$out"
[ -d "$out/wiki-corpus" ] ||
  torchelmo prepare "${wiki[@]}" "${valid[@]}" --vocab-size 124000 -o "$out/wiki-corpus"
[ -d "$out/en-corpus" ] ||
  torchelmo prepare "${wiki[@]}" "$texts/books-1.txt.xz" "${valid[@]}" \
    --vocabulary "$out/wiki-corpus/vocab.txt" -o "$out/en-corpus"
torchelmo pretrain "$name" --set "data.corpus=$out/en-corpus" -o "$out/run" "$@"
python "$here/model_perplexity.py" "$out/run/last" "$texts/wiki.valid.txt" "$texts/books.valid.txt" \
  --name "$name" -o "$out/perplexity-$name.json"
for probe in wic:ctx wsd:wsd pos:pos; do
  torchelmo analyse "${probe%:*}" "$out/run/last" --data "$tasks/${probe#*:}.tar.xz" \
    -o "$out/${probe%:*}-$name.json"
done
