"""Stands in for nvidia-cutlass-dsl 4.7.0, cutlass/testing.py: `tune` and what it measures with.

`times` is the test's; `timed` lists what was timed.
"""

# ruff: noqa: PLR0917 - as many arguments as the real one has

from itertools import product

times = {}
timed = []


class JitArguments:
    def __init__(self, *args, **kwargs):
        self.args = args
        self.kwargs = kwargs


def _benchmark_for_autotune(callable, *args, **kwargs):
    timed.append(callable)
    return times[callable]


def tune(
    func,
    params_dict=None,
    kernel_arguments=JitArguments(),  # noqa: B008 - as it is there
    warmup_iterations=10,
    iterations=100,
    stream=None,
):
    least, best = float("inf"), None
    for chosen in product(*params_dict.values()):
        config = dict(zip(params_dict, chosen, strict=True))
        made = func(*kernel_arguments.args, **{**kernel_arguments.kwargs, **config})
        took = _benchmark_for_autotune(made)
        if took < least:
            least, best = took, config
    return best
