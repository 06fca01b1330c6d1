"""Runs the three kernels of repro.py in many orders of programs and counts different results.

python orders.py [ORDERS] [--seed SEED] [--all]

ORDERS (40) orders are drawn; --all takes every order of a grid of four programs instead. Ends with
0 when the atomic kernel had more than one result, and the serial one and the one with slots had
one.
"""

from __future__ import annotations

import argparse
import itertools
import random

import repro

SMALL = repro.Sizes(tiles=4, groups=1, n_tiles=4)


def results(how, orders, sizes=None):
    """The different digests that each sum had over these orders, by name.

    orders: as `repro.programs_in` takes them.
    """
    sums = repro.Sums(sizes)
    found = {name: set() for name in repro.NAMES}
    for order in orders:
        with repro.programs_in(order):
            for name, tensor in sums.all(how).items():
                found[name].add(repro.digest(tensor))
    return found


def every_order(count):
    """All orders of `count` programs. A grid of one program has one."""
    orders = itertools.permutations(range(count))
    return [lambda n, order=order: order if n == count else range(n) for order in orders]


def main():
    """Count, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("orders", nargs="?", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--all", action="store_true", help="every order of four programs")
    words = parser.parse_args()
    if words.all:
        orders, sizes = every_order(4), SMALL
        print(f"all {len(orders)} orders of 4 programs")
    else:
        orders, sizes = [repro.order_of(words.seed + n) for n in range(words.orders)], None
        print(f"{len(orders)} orders of 8 and 16 programs, seed {words.seed}")
    counts = {}
    for how in repro.HOWS:
        found = results(how, orders, sizes)
        counts[how] = [len(found[name]) for name in repro.NAMES]
        text = ", ".join(f"{name} {len(found[name])}" for name in repro.NAMES)
        print(f"  {how:6}  different results: {text}")
    held = counts["serial"] == counts["slots"] == [1, 1, 1] and max(counts["atomic"]) > 1
    print("serial and slots hold in every order" if held else "not as expected")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
