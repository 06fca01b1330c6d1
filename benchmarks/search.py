"""How many probes the searches take over simulated stacks, and how often they are right.

Counts, never times: the same on every machine. A test holds the bounds (`BOUNDS`). Every stack is
simulated by a function from what is tried to bits; the searches are those that real bisections use.
The first try of the whole bad stack is among the counts, although a bisection knows it already.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bisect"))

from stackbisect.probe import Evidence, ProbeResult
from stackbisect.search import culprits, gallop, noisy, probing
from stackbisect.search.culprits import Mixture
from stackbisect.search.verdict import Rule, Verdict

PACKAGES = tuple(f"package-{number:02}" for number in range(60))
TAGS = 1000
COMMITS = 64
FLAKY = 0.2
SEEDS = 300

# The most probes that each may take; right and wrong answers of 300 in noise.
BOUNDS = {
    "one culprit": 12,
    "interacting pair": 40,
    "two independent": 40,
    "coupled pair": 40,
    "three that each change the bits": 60,
    "tags": 16,
    "tags without a good end": 25,
}
RIGHT_IN_NOISE, WRONG_IN_NOISE = 0.95, 0.01

# Bits of a mixture; None where it cannot be tested.
Stack = Callable[[Mixture], str | None]


@dataclass(frozen=True)
class Row:
    """One kind of stack: the probes of every case, and how many answers were right."""

    name: str
    probes: tuple[int, ...]
    right: int

    def text(self) -> str:
        """One line."""
        mean, most = statistics.mean(self.probes), max(self.probes)
        return (
            f"  {self.name:<34} {len(self.probes):5} cases   right {self.right:5}   "
            f"probes: mean {mean:5.1f}, most {most:3}   bound {BOUNDS[self.name]}"
        )


@dataclass(frozen=True)
class Noise:
    """Searches in noise: how they ended."""

    right: int
    wrong: int
    undecided: int
    probes: tuple[int, ...]

    def text(self, name: str) -> str:
        """One line."""
        return (
            f"  {name:<34} {len(self.probes):5} cases   right {self.right:5}   "
            f"wrong {self.wrong}, undecided {self.undecided}   "
            f"probes: mean {statistics.mean(self.probes):.1f}, most {max(self.probes)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    draw = random.Random(parser.parse_args().seed)
    print(f"{len(PACKAGES)} packages")
    for row in package_rows(draw, drawn=600):
        print(row.text())
    print(f"{TAGS} tags")
    for row in tag_rows(draw.sample(range(1, TAGS), 200)):
        print(row.text())
    print(f"{COMMITS} commits, noise")
    print(in_noise(range(SEEDS)).text(f"bad side good in {FLAKY:.0%} of its probes"))
    print(in_noise(range(SEEDS), good_side=0.1).text("and good side bad in 10%"))


def package_rows(draw: random.Random, drawn: int) -> list[Row]:
    """Every position of one culprit, every pair; `drawn` cases where there are too many."""
    pairs = list(itertools.combinations(PACKAGES, 2))
    some = [draw.choice(pairs) for _ in range(drawn)]
    coupled = [(*pair, draw.choice((*pair, *PACKAGES))) for pair in some]
    return [
        _row("one culprit", [one(name) for name in PACKAGES]),
        _row("interacting pair", [interacting(*pair) for pair in pairs[:: _step(pairs, drawn)]]),
        _row("two independent", [independent(*pair) for pair in pairs[:: _step(pairs, drawn)]]),
        _row("coupled pair", [coupling(*each) for each in coupled]),
        _row(
            "three that each change the bits",
            [three(draw.sample(PACKAGES, 3)) for _ in range(drawn)],
        ),
    ]


def _step(cases: Sequence[object], wanted: int) -> int:
    return max(len(cases) // wanted, 1)


@dataclass(frozen=True)
class Case:
    """A simulated stack and the culprits that are right."""

    stack: Stack
    culprits: frozenset[Mixture]


def one(name: str) -> Case:
    """One package changes the bits."""
    return Case(lambda m: "bad" if name in m else "good", _sets([name]))


def interacting(first: str, second: str) -> Case:
    """Two packages change the bits together, neither alone."""
    return Case(lambda m: "bad" if {first, second} <= m else "good", _sets([first, second]))


def independent(first: str, second: str) -> Case:
    """Either of two packages gives the bad bits."""
    return Case(lambda m: "bad" if {first, second} & m else "good", _sets([first], [second]))


def coupling(first: str, second: str, culprit: str) -> Case:
    """Two packages that cannot be mixed, unknown to the search; `culprit` may be one of them."""

    def stack(mixture: Mixture) -> str | None:
        if (first in mixture) != (second in mixture):
            return None
        return "bad" if culprit in mixture else "good"

    return Case(stack, _sets([first, second] if culprit in (first, second) else [culprit]))


def three(names: Sequence[str]) -> Case:
    """Three packages that each change the bits, to values of their own."""

    def stack(mixture: Mixture) -> str | None:
        changed = sorted(set(names) & mixture)
        if len(changed) == len(names):
            return "bad"
        return "+".join(changed) or "good"

    return Case(stack, _sets(*([name] for name in names)))


def _sets(*sets: Iterable[str]) -> frozenset[Mixture]:
    return frozenset(frozenset(names) for names in sets)


def _row(name: str, cases: Sequence[Case]) -> Row:
    searched = [search_packages(case.stack) for case in cases]
    right = sum(
        answer.status == "found" and {c.components for c in answer.culprits} == case.culprits
        for case, (answer, _) in zip(cases, searched, strict=True)
    )
    return Row(name, tuple(probes for _, probes in searched), right)


def search_packages(
    stack: Stack, parts: Sequence[Mixture] = culprits.atoms(PACKAGES, ())
) -> tuple[culprits.Answer, int]:
    """The answer, and how many probes it took."""
    verdicts: dict[Mixture, Verdict] = {}
    tries: dict[Mixture, int] = {}
    while True:
        step = culprits.decide(parts, verdicts, tries)
        if isinstance(step, culprits.Answer):
            return step, sum(tries.values())
        (ask,) = step.asks
        tries[ask.mixture] = ask.attempt
        verdict = _verdict(stack(ask.mixture))
        if verdict.kind != "third" or ask.attempt > 1:
            verdicts[ask.mixture] = verdict


def _verdict(bits: str | None) -> Verdict:
    if bits is None:
        return Verdict("untestable", "", "it cannot be imported")
    if bits == "good":
        return Verdict("good", bits)
    return Verdict("bad" if bits == "bad" else "third", bits)


# -- lists -----------------------------------------------------------------------------------------


def tag_rows(changes: Iterable[int]) -> list[Row]:
    """The first bad tag at each of these places."""
    both = [search_tags(TAGS, change) for change in changes]
    back = [search_tags(TAGS, change, good_end=False) for change in changes]
    return [
        Row("tags", tuple(n for _, n in both), sum(right for right, _ in both)),
        Row("tags without a good end", tuple(n for _, n in back), sum(right for right, _ in back)),
    ]


def search_tags(size: int, change: int, good_end: bool = True) -> tuple[bool, int]:
    """Whether the answer is right, and how many probes it took."""
    ids = [str(position) for position in range(size)]
    seen: dict[str, list[ProbeResult]] = {}
    ask = probing.next_steps if good_end else gallop.next_steps
    while True:
        step = ask(ids, seen, Rule())
        if not isinstance(step, probing.Batch):
            break
        (each,) = step.tries
        seen.setdefault(ids[each.position], []).append(_ran("bg"[each.position < change]))
    found = isinstance(step, probing.Found) and step.answer.first_bad == change
    return found, sum(map(len, seen.values()))


def in_noise(seeds: Iterable[int], good_side: float = 0.0) -> Noise:
    """Searches over commits whose first bad one is drawn; `good_side`: bad bits before it."""
    ends: list[str] = []
    probes = []
    for seed in seeds:
        end, spent = _search_in_noise(random.Random(seed), good_side)
        ends.append(end)
        probes.append(spent)
    return Noise(ends.count("right"), ends.count("wrong"), ends.count("undecided"), tuple(probes))


def _search_in_noise(draw: random.Random, good_side: float) -> tuple[str, int]:
    change = draw.randrange(1, COMMITS)
    counts = [noisy.Counts() for _ in range(COMMITS)]
    ends = (0, COMMITS - 1)
    wanted = [end for end in ends for _ in range(noisy.DEFAULT.ends)]
    spent, found = 0, None
    while found is None:
        for position in wanted:
            odds = 1 - FLAKY if position >= change else good_side
            counts[position] = counts[position].plus(bad=draw.random() < odds)
        spent += len(wanted)
        found = noisy.decide(counts, noisy.DEFAULT, spent)
        wanted = noisy.choose(counts, noisy.DEFAULT, 1)
    if not found.decided or found.none > max(found.posterior):
        return "undecided", spent
    return ("right" if found.first_bad == change else "wrong"), spent


def _ran(bits: str) -> ProbeResult:
    evidence = Evidence({"loss": {"0": (bits,)}})
    return ProbeResult("ran", 0, "", evidence, {}, {}, 0.0, 1.0, "")


if __name__ == "__main__":
    main()
