"""What a chain of stages is told as: JSON values, a text for people, a page of Markdown."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stackbisect import cli, journal, markdown, plan, progress, report, report_chain, report_text
from stackbisect.spaces import window
from stackbisect.stages import chain
from stackbisect.stages.search import Search
from tests.fakes.stacks import Bits, Simulated, Values
from tests.stackbisect.simulated import begin, go, header, names, tables
from tests.stackbisect.test_stages_chain import VERSIONS, any_of, since

pytestmark = pytest.mark.usefixtures("no_sync")

GOLDEN = """\
bisection b: c04 1.6 → 1.7 (of 1.0 → 2.0) changes the bits between 24.02 and 24.03
  last good  24.02
  first bad  24.03
  their bits first differ in stream loss, rank 0, first step

how it was found
  1. where the bits change: 24.02 → 24.03 (8 probes, 8.0 s)
     last good  24.02  good 249ba44c7e9f  probes 5, 7
     first bad  24.03  bad abc80b116c20   probes 6, 8, 25, 27
  2. whether only the choices at run time differ: no difference
     neither stack made a choice at run time that pinner sees
  3. which components change the bits: c04 1.0 → 2.0 (9 probes, 9.0 s)
     swap test  24.03 with all 12 components of 24.02       good 249ba44c7e9f  probe 9
     alone      24.03 with all components of 24.02 but c04  bad abc80b116c20   probes 14, 15
     without    24.03 with c04 of 24.02                     good 249ba44c7e9f  probes 16, 17
  4. which version of c04 changes the bits: 1.6 → 1.7 (6 probes, 6.0 s)
     last good  24.03 with c04 1.6  good 249ba44c7e9f  probes 21, 22
     first bad  24.03 with c04 1.7  bad abc80b116c20   probes 20, 23
  5. both sides once more, in turns: confirmed (4 probes, 4.0 s)
     good side  24.03 with c04 of 24.02  good 249ba44c7e9f  probe 24
     bad side   24.03                    bad abc80b116c20   probe 25
     good side  24.03 with c04 of 24.02  good 249ba44c7e9f  probe 26
     bad side   24.03                    bad abc80b116c20   probe 27

candidates, from the good end to the bad end
  24.01  good        249ba44c7e9f · probes 1, 2
  24.02  good        249ba44c7e9f · probes 5, 7
  24.03  bad         abc80b116c20 · probes 6, 8, 25, 27
  24.04  bad         abc80b116c20 · probes 3, 4

transitions seen
  24.02 (good) → 24.03 (bad)

9 things differ between 24.02 and 24.03 (--json has them)

27 probes, 27.0 s
run it again: cd /home/me/run && stackbisect run --fresh --name b -- python train.py
"""

PAGE = """\
### c04 1.6 → 1.7 (of 1.0 → 2.0) changes the bits between 24.02 and 24.03

- last good: `24.02`
- first bad: `24.03`
- their bits first differ in stream loss, rank 0, first step

| what changed | last good stack | first bad stack | changes the bits |
|---|---|---|---|
| c04 | `1.0` | `2.0` | by itself, between 1.6 and 1.7 |

| step | result | probes | time |
|---|---|---|---|
| where the bits change | 24.02 → 24.03 | 8 | 8.0 s |
| whether only the choices at run time differ | no difference: neither stack made a choice at \
run time that pinner sees |  |  |
| which components change the bits | c04 1.0 → 2.0 | 9 | 9.0 s |
| which version of c04 changes the bits | 1.6 → 1.7 | 6 | 6.0 s |
| both sides once more, in turns | confirmed | 4 | 4.0 s |

| what shows it | stack | bits | digest | probes |
|---|---|---|---|---|
| last good | 24.02 | good | `249ba44c7e9f` | 5, 7 |
| first bad | 24.03 | bad | `abc80b116c20` | 6, 8, 25, 27 |
| swap test | 24.03 with all 12 components of 24.02 | good | `249ba44c7e9f` | 9 |
| alone | 24.03 with all components of 24.02 but c04 | bad | `abc80b116c20` | 14, 15 |
| without | 24.03 with c04 of 24.02 | good | `249ba44c7e9f` | 16, 17 |
| last good | 24.03 with c04 1.6 | good | `249ba44c7e9f` | 21, 22 |
| first bad | 24.03 with c04 1.7 | bad | `abc80b116c20` | 20, 23 |
| good side | 24.03 with c04 of 24.02 | good | `249ba44c7e9f` | 24 |
| bad side | 24.03 | bad | `abc80b116c20` | 25 |
| good side | 24.03 with c04 of 24.02 | good | `249ba44c7e9f` | 26 |
| bad side | 24.03 | bad | `abc80b116c20` | 27 |

"""


def told(tmp_path: Path, runtime: Simulated, **setup: Any) -> dict[str, Any]:
    """A whole bisection's answer; it is JSON."""
    record = go(begin(tmp_path / "b", runtime, **setup), runtime)
    outcome = Search.of(record.header).outcome(chain.first_search(record))
    found = report.outcome(record, "b", outcome, runtime)
    assert json.loads(json.dumps(found)) == found
    return found


def versioned() -> Simulated:
    """Twelve components of which one changes the bits, from its version 1.7 on."""
    component = "distribution:c04"
    return Simulated(tables(names(12)), since(component, "1.7"), index={component: VERSIONS})


def test_the_text_says_the_answer_then_the_chain_with_what_shows_each_step(tmp_path: Path) -> None:
    assert report_text.text(told(tmp_path, versioned())) == GOLDEN


def test_the_page_says_the_same_in_tables_and_ends_with_the_command(tmp_path: Path) -> None:
    page = markdown.page(told(tmp_path, versioned()))
    assert page.startswith(PAGE)
    assert page.endswith(
        "27 probes, 27.0 s. To run it again:\n\n```sh\ncd /home/me/run && "
        "stackbisect run --fresh --name b -- python train.py\n```\n"
    )
    assert "one" not in page.rpartition("ran on")[2].splitlines()[0]  # a host's name is private


def test_the_answer_has_culprits_chain_choices_and_confirmation_as_values(tmp_path: Path) -> None:
    found = told(tmp_path, versioned())
    assert (found["status"], found["exit_code"]) == ("found", 0)
    (culprit,) = found["culprits"]
    assert culprit["components"] == [
        {"kind": "distribution", "name": "c04", "good": "1.0", "bad": "2.0"}
    ]
    assert culprit["versions"] == {
        "status": "found",
        "last_good": "1.6",
        "first_bad": "1.7",
        "range": None,
    }
    assert [each["stage"] for each in found["chain"]] == [
        "search",
        "choices",
        "components",
        "versions:c04",
        "confirm",
    ]
    assert sum(len(each["probes"]) for each in found["chain"]) == found["probes"]
    assert found["choices"]["status"] == "no-difference"
    good, bad = found["confirmed"]["good"], found["confirmed"]["bad"]
    assert (len(good), len(bad), len({*good}), len({*bad})) == (2, 2, 1, 1)
    assert good[0] != bad[0]


def drift(values: Values, probe: int) -> str:
    """Good bits from the second turn on, whatever is tried."""
    return "g" if probe > 18 else any_of({"package:c05"})(values, probe)


ONE, OTHER = "package:c05", "environment:c07"


@pytest.mark.parametrize(
    ("bits", "status", "code", "answer"),
    [
        (
            any_of({ONE, OTHER}),
            "found",
            0,
            "Debian package c05 1.0 → 2.0 and variable c07=1.0 → 2.0 together change the bits "
            "between 24.02 and 24.03",
        ),
        (
            any_of({ONE}, {OTHER}),
            "found",
            0,
            "each by itself, Debian package c05 1.0 → 2.0 and variable c07=1.0 → 2.0 change the "
            "bits between 24.02 and 24.03",
        ),
        (drift, "unconfirmed", 2, "the change between 24.02 and 24.03 was not confirmed: 24.03 "),
        (
            lambda values, probe: (
                f"noise{probe}"
                if {*values.values()} == {"1.0", "2.0"}
                else any_of({ONE})(values, probe)
            ),
            "unstable",
            2,
            "the bits change between 24.02 and 24.03; by which component cannot be told",
        ),
        (
            lambda values, probe: (
                "x" if {*values.values()} == {"1.0", "2.0"} else any_of({ONE})(values, probe)
            ),
            "found",
            0,
            "together change the bits between 24.02 and 24.03",
        ),
    ],
    ids=["pair", "independent", "drift", "unstable", "all or nothing"],
)
def test_each_kind_of_end_has_its_status_and_its_sentence(
    tmp_path: Path, bits: Bits, status: str, code: int, answer: str
) -> None:
    found = told(tmp_path, Simulated(tables(names(8)), bits))
    assert answer in found["answer"]
    assert (found["status"], found["exit_code"]) == (status, code)
    assert [each["verdict"] for each in found["verdicts"]] == ["good", "good", "bad", "bad"]
    assert report_text.text(found).startswith(f"bisection b: {found['answer']}\n")
    assert found["answer"][1:] in markdown.page(found).replace("\\", "")


def test_a_change_in_nothing_that_can_be_swapped_is_no_success(tmp_path: Path) -> None:
    stacks = [{**t, "host:": str(p >= 2)} for p, t in enumerate(tables(names(8)))]

    class Hidden(Simulated):
        def inventory(self, *args: Any) -> Any:
            found = super().inventory(*args)
            return type(found)(tuple(c for c in found.components if c.kind != "host"))

    bits: Bits = lambda values, probe: "b" if values["host:"] == "True" else "g"
    found = told(tmp_path, Hidden(stacks, bits))
    assert (found["status"], found["exit_code"], found["culprits"]) == ("elsewhere", 2, [])
    text = report_text.text(found)
    assert "but in nothing that can be swapped" in text
    assert "24.03 with all 8 components of 24.02  bad" in text


def test_a_range_of_tags_stays_one_though_the_culprit_in_it_is_named(tmp_path: Path) -> None:
    ids = names(8)
    stacks = [*tables(ids, 2, 0), dict.fromkeys(ids, "1.5"), *tables(ids, 0, 2)]

    def bits(values: Values, probe: int) -> str:
        return "x" if {*values.values()} == {"1.5"} else any_of({ONE})(values, probe)

    found = told(tmp_path, Simulated(stacks, bits))
    assert (found["status"], found["exit_code"]) == ("range", 2)
    assert found["range"] == ["24.02", "24.03", "24.04"]
    assert found["answer"].startswith("Debian package c05 1.0 → 2.0 changes the bits between")
    assert "(candidates between them cannot be tested)" in found["answer"]


def test_probes_of_different_machines_are_never_compared_silently(tmp_path: Path) -> None:
    class Two(Simulated):
        def run(self, candidate: Any, job: Any) -> Any:
            names = [{"hostname": f"node{n}", "driver": f"5{n}0"} for n in (1, 2)]
            self.host = names[len(self.tried) % 2]
            return super().run(candidate, job)

    found = told(tmp_path, Two(tables(names(8)), any_of({ONE})))
    assert len(found["hosts"]) == 2
    note = next(note for note in found["notes"] if "machines that differ in" in note)
    assert "hostname and driver: node1, 510 (probes 1, 3" in note
    assert any("turns of the confirmation ran on different machines" in n for n in found["notes"])


def test_noise_is_told_as_rates_and_a_posterior(tmp_path: Path) -> None:
    draw = random.Random(7)

    def bits(values: Values, probe: int) -> str:
        return "b" if values[ONE] == "2.0" and draw.random() < 0.7 else "g"

    found = told(tmp_path, Simulated(tables(names(8), 6, 6), bits), noisy=True)
    assert [each["stage"] for each in found["chain"]] == ["search"]
    assert any("not searched with --noisy" in note for note in found["notes"])
    text = report_text.text(found)
    before, after = re.findall(r"(\d+)% of probes before the change, (\d+)% after it", text)[0]
    assert int(before) < 20
    assert int(after) > 50
    assert f"  {found['first_bad']}: " in text.partition("where the change is")[2]


def test_what_is_not_over_is_unfinished_and_shows_what_is_known(tmp_path: Path) -> None:
    """The journal cut in the middle of the components, and in the middle of the search."""
    runtime = versioned()
    told(tmp_path, runtime)
    file = tmp_path / "b" / journal.FILE
    lines = file.read_bytes().splitlines(keepends=True)
    for probes, answer in ((12, "not finished"), (2, "not finished")):
        place = [n for n, line in enumerate(lines) if b'"t":"probe"' in line][probes - 1]
        file.write_bytes(b"".join(lines[: place + 1]))
        record = journal.read(tmp_path / "b")
        outcome = Search.of(record.header).outcome(chain.first_search(record))
        found = report.outcome(record, "b", outcome, None)
        assert (found["status"], found["exit_code"], found["answer"]) == ("unfinished", 5, answer)
        assert found["last_good"] == ("24.02" if probes == 12 else None)
        assert f"{probes} probes" in report_text.text(found)
        shown = report.stopped(record, "b", "interrupted", "interrupted")
        assert (shown["status"], shown["answer"]) == ("interrupted", "interrupted")
        assert "go on with: stackbisect resume b" in report_text.text(shown)


def test_an_answer_of_before_there_were_stages_can_still_be_told(tmp_path: Path) -> None:
    found = told(tmp_path, versioned(), depth="search")
    later = ("answer", "chain", "choices", "commit", "confirmed", "hosts")
    older = {name: value for name, value in found.items() if name not in later}
    assert report_text.text(older) == report_text.text(found)
    assert markdown.page(older).startswith("### The bits change between 24.02 and 24.03\n")


def test_a_page_of_an_answer_with_markup_in_it_is_only_text() -> None:
    assert markdown._text("a|b <i> *x* @me #1\n") == "a\\|b \\<i\\> \\*x\\* &#64;me \\#1"
    assert markdown._code("a`b|c") == "`` a`b\\|c ``"


def test_report_prints_the_page_that_was_kept(tmp_path: Path) -> None:
    runtime = versioned()
    folder = tmp_path / journal.ROOT / "b"
    found = told(folder.parent, runtime)
    with journal.resume(folder) as held:
        held.answer(found, 0.0)
    written: list[str] = []
    world = cli.World({}, tmp_path, written.append, written.append, progress.Plain(None))  # type: ignore[arg-type]
    assert cli.run(["report", "b", "--markdown"], world) == 0
    assert "".join(written) == markdown.page(found)


def test_a_selection_is_the_answer_with_the_lock_to_keep() -> None:
    """Its own stage shows it; here it is told."""
    parts = [{"kind": "selection", "name": "add_kernel N=64", "good": "BT=32", "bad": "BT=64"}]
    culprit: Mapping[str, Any] = {"kind": "selection", "components": parts, "given": []}
    found = {"status": "found", "last_good": "a", "first_bad": "b", "range": None}
    assert report_chain.sentence({**found, "culprits": [culprit]}) == (
        "the choice of 1 config at run time changes the bits between a and b"
    )


def test_the_two_sides_are_not_said_twice_where_they_are_the_culprits_versions() -> None:
    parts = [{"kind": "distribution", "name": "numpy", "good": "2.1.3", "bad": "2.2.0"}]
    culprit: Mapping[str, Any] = {"components": parts, "given": [], "versions": None}
    found = {"status": "found", "last_good": "2.1.3", "first_bad": "2.2.0", "range": None}
    assert report_chain.sentence({**found, "culprits": [culprit]}) == (
        "numpy 2.1.3 → 2.2.0 changes the bits"
    )


@pytest.mark.parametrize(
    ("setup", "stages"),
    [
        ({}, ["search", "choices", "components", "versions:the culprit", "confirm"]),
        ({"depth": "components"}, ["search", "choices", "components", "confirm"]),
        ({"depth": "choices"}, ["search", "choices", "confirm"]),
        ({"depth": "search"}, ["search"]),
        ({"noisy": True}, ["search"]),
        ({"runtime": "git"}, ["search", "choices", "commit", "confirm"]),
    ],
)
def test_the_plan_says_which_stages_would_follow_and_their_probes(
    setup: Mapping[str, Any], stages: list[str]
) -> None:
    asked = header(6, **setup)
    planned = plan.planned(asked.setup, window.Space(asked.candidates))
    assert [each["stage"] for each in planned["stages"]] == stages
    text = plan.text(planned)
    assert ("10 among 30" in text) == ("components" in stages)
    assert ("in turns: at most 4 probes" in text) == ("confirm" in stages)
    assert ("at most 9 probes" in text) == ("noisy" not in setup)
