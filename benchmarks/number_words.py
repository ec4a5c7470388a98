"""Pairs for sequence to sequence without a download: numbers in English words, and in digits.

    python benchmarks/number_words.py --out runs/numbers

writes train.jsonl and test.jsonl, one pair per line:

    {"source": "seven hundred and twelve, forty-one, nine thousand", "target": "712 41 9000"}

An artificial task with one right answer for each source: it shows whether a model has learned to
read a source in pieces and to write them in another notation, in order. The same arguments give the
same files; no source of test.jsonl is in train.jsonl.
"""

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """A number from 0 to 9999 in words, as the British say it."""
    if number < 20:
        return SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{SMALL[ones]}" if ones else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    many, rest = divmod(number, size)
    link = " and " if 0 < rest < 100 else " "
    return f"{in_words(many)} {name}" + (link + in_words(rest) if rest else "")


def pairs(seed: int, most: int) -> Iterator[tuple[str, str]]:
    """Endless pairs of 2 to `most` numbers, as many of one digit as of two, three and four."""
    draw = random.Random(seed)
    while True:
        numbers = [draw.randrange(10 ** draw.randint(1, 4)) for _ in range(draw.randint(2, most))]
        yield ", ".join(map(in_words, numbers)), " ".join(map(str, numbers))


def write(path: Path, found: list[tuple[str, str]]) -> None:
    """One JSON object a line."""
    lines = (json.dumps({"source": source, "target": target}) for source, target in found)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--train", type=int, default=30_000, help="pairs to train on")
    parser.add_argument("--test", type=int, default=500, help="pairs to test on")
    parser.add_argument("--most", type=int, default=4, help="numbers of a pair, at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    endless = pairs(args.seed, args.most)
    train = list(itertools.islice(endless, args.train))
    known = {source for source, _ in train}
    unseen = (pair for pair in endless if pair[0] not in known)
    test = list(itertools.islice(unseen, args.test))
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.out / "train.jsonl", train)
    write(args.out / "test.jsonl", test)


if __name__ == "__main__":
    main()
