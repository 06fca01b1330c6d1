"""The rule by which a lock decides: pure, checked by enumeration."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinner.inside import values
from pinner.inside.choosers.triton import decide as room


def live(*blocks):
    return room.live_configs([({"BLOCK": b, "num_warps": 4}, ("object", b)) for b in blocks])


def entry(key, block, source="s1", alternatives=3):
    return {
        "source": source,
        "key": values.canonical(key),
        "share": values.share_class(key),
        "config": {"BLOCK": block, "num_warps": 4},
        "alternatives": alternatives,
    }


def kernel(*entries, fallback=()):
    configs = [{"BLOCK": block, "num_warps": 4} for block in fallback]
    return room.LockedKernel({"entries": list(entries), "fallback": configs})


def asked(locked, key, offered, source="s1"):
    return room.decide(locked, source, values.canonical(key), values.share_class(key), offered)


def test_forces_the_locked_config_whatever_the_order_of_the_list():
    locked = kernel(entry({"n": 1}, 32))
    for blocks in itertools.permutations((16, 32, 64)):
        decision = asked(locked, {"n": 1}, live(*blocks))
        assert decision.how == "forced"
        assert decision.live.config == ("object", 32)


def test_refuses_a_config_that_is_not_on_offer_and_names_the_nearest():
    locked = kernel(entry({"n": 1}, 128))
    offered = room.live_configs(
        [
            ({"BLOCK": 64, "num_warps": 8}, 0),
            ({"BLOCK": 128, "num_warps": 8}, 1),
            ({"BLOCK": 32, "num_warps": 8}, 2),
        ]
    )
    with pytest.raises(room.Invalid) as refused:
        asked(locked, {"n": 1}, offered)
    assert refused.value.nearest == {"BLOCK": 128, "num_warps": 8}
    assert len(refused.value.candidates) == 3
    assert '"BLOCK":128,"num_warps":4' in str(refused.value)


def test_refuses_a_kernel_whose_source_changed():
    with pytest.raises(room.Invalid, match="source has changed: locked s1, found s2"):
        asked(kernel(entry({"n": 1}, 32)), {"n": 1}, live(16, 32), source="s2")


def test_true_and_one_and_one_point_nought_are_three_entries():
    locked = kernel(entry({"f": True}, 16), entry({"f": 1}, 32), entry({"f": 1.0}, 64))
    offered = live(64, 32, 16)
    found = [asked(locked, {"f": f}, offered).live.fields["BLOCK"] for f in (True, 1, 1.0)]
    assert found == [16, 32, 64]


def test_a_key_triton_cannot_tell_apart_takes_the_neighbours_config():
    locked = kernel(entry({"n": 1, "x:dtype": "float32"}, 32))
    decision = asked(locked, {"n": 1, "y:dtype": "float32"}, live(16, 32))
    assert (decision.how, decision.live.fields["BLOCK"]) == ("shared", 32)


def test_neighbours_that_disagree_are_no_answer():
    locked = kernel(
        entry({"n": 1, "x:dtype": "float32"}, 32),
        entry({"n": 1, "y:dtype": "float32"}, 16),
        fallback=(64,),
    )
    third = {"n": 1, "z:dtype": "float32"}
    assert asked(locked, third, live(16, 32, 64)).how == "fallback"
    assert locked.contested("s1", values.share_class(third))


def test_the_fallback_is_the_most_used_locked_config_that_is_live():
    locked = kernel(entry({"n": 1}, 32), fallback=(128, 32, 16))
    assert asked(locked, {"n": 2}, live(16, 32)).live.fields["BLOCK"] == 32
    assert asked(locked, {"n": 2}, live(16, 128)).live.fields["BLOCK"] == 128


@given(st.permutations([16, 256, 32, 64, 128]))
def test_without_a_lock_the_first_in_serialised_order_whatever_the_list(blocks):
    decision = room.decide(None, "s", "{}", "[]", live(*blocks))
    assert decision.how == "fallback"
    assert decision.live.text == min(c.text for c in live(*blocks))


def test_random_locks_are_obeyed_entry_by_entry():
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    blocks = [2**i for i in range(4, 12)]
    expected = {n: draw.choice(blocks) for n in range(200)}
    locked = kernel(*[entry({"n": n}, block) for n, block in expected.items()])
    for n, block in expected.items():
        offered = live(*draw.sample(blocks, len(blocks)))
        assert asked(locked, {"n": n}, offered).live.fields["BLOCK"] == block
