"""Ties compile caches to the lock, and names what a graph from a cache had decided.

A graph that comes from a cache skips every choice. So its key gets a tag: of the lock's Inductor
section when enforcing, and of this one run when observing, in which decisions are really to be
made. Each compiled graph carries the decisions it was made with, as plain data, and a warm process
writes them down as "cached".
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Any, Callable, Dict, Optional, Set

from ... import VERSION, session, values
from ..triton.decide import live_configs
from . import switches
from .chooser import Chooser
from .lines import Entry, Line, Taken
from .question import Question

_DECISIONS = "pinner_decisions"
_OWN_TAG = re.compile(r"\+?pinner-[0-9a-f]{16}$")


def tag_of(active: session.Session, inductor_digest: str) -> str:
    """What the keys of compile caches get in this session."""
    parts = [VERSION, active.mode, active.on_miss, inductor_digest]
    if not active.enforcing or active.on_miss == "tune":
        parts += [active.folder, active.created]
    text = values.canonical(parts)
    return "pinner-" + hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


class Caches:
    """The hooks at the two ends of a compilation. tag: of this session."""

    def __init__(self, chooser: Chooser, tag: str) -> None:
        self._chooser = chooser
        self._tag = tag
        self._fresh: Set[int] = set()

    def patch(self, compile_fx: Any) -> None:
        """Hook `torch._inductor.compile_fx`: where a compilation begins, and where it ends."""
        original = compile_fx.compile_fx

        @functools.wraps(original)
        def compile_fx_(model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            self._begin(compile_fx.config, options)
            self._name_mode(getattr(compile_fx, "fx_compile_mode", None))
            return original(model, inputs, *args, **options)

        compile_fx.compile_fx = compile_fx_
        compile_fx.fx_codegen_and_compile = self._collecting(compile_fx.fx_codegen_and_compile)
        if hasattr(compile_fx, "_compile_fx_inner"):  # 2.6 and later
            compile_fx._compile_fx_inner = self._switching(
                compile_fx._compile_fx_inner, compile_fx.config
            )

    def patch_output(self, output_code: Any) -> None:
        """Hook what runs on every compiled graph, also on one that comes from a cache."""
        kind = output_code.CompiledFxGraph
        original = kind.post_compile

        @functools.wraps(original)
        def post_compile(graph: Any, *args: Any, **options: Any) -> Any:
            if id(graph) in self._fresh:
                self._fresh.discard(id(graph))
            else:
                self._announce(graph)
            return original(graph, *args, **options)

        kind.post_compile = post_compile

    def _begin(self, config: Any, options: Dict[str, Any]) -> None:
        patches = switches.apply(config, options.get("config_patches"), self._chooser.lines)
        if patches is not None:
            options["config_patches"] = patches
        self._tag_keys(config)
        self._chooser.begin_graph()

    def _name_mode(self, mode: Any) -> None:
        """Say that graphs are compiled in another process (TORCHINDUCTOR_FX_COMPILE_MODE)."""
        name = getattr(mode, "name", "NORMAL")
        if name not in ("NORMAL", "SERIALIZE"):
            text = (
                "graphs are compiled in another process: its choices are held, but a graph from a "
                "cache does not name them. Leave TORCHINDUCTOR_FX_COMPILE_MODE unset"
            )
            self._chooser.lines.setting("fx_compile_mode", name, "no", text)

    def _switching(self, original: Callable[..., Any], config: Any) -> Callable[..., Any]:
        """Set the switches again for each graph.

        A backward graph may be compiled when it is first run, and Dynamo puts torch's
        deterministic mode, and with it Inductor's, back after each frame (2.13).
        """

        @functools.wraps(original)
        def compile_inner(*args: Any, **options: Any) -> Any:
            switches.apply(config, None, self._chooser.lines)
            return original(*args, **options)

        return compile_inner

    def _tag_keys(self, config: Any) -> None:
        from torch.compiler import config as compiler

        if not hasattr(compiler, "cache_key_tag"):  # before 2.6: nothing ties a cache to a lock
            config.force_disable_caches = True
            text = "this torch has no cache_key_tag, so that a cache could not be tied to the lock"
            self._chooser.lines.setting("force_disable_caches", True, "set", text)
            return
        users = _OWN_TAG.sub("", compiler.cache_key_tag or "")
        tag = users + ("+" if users else "") + self._tag
        if compiler.cache_key_tag != tag:
            compiler.cache_key_tag = tag

    def _collecting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fx_codegen_and_compile(*args: Any, **options: Any) -> Any:
            self._chooser.begin_graph()
            try:
                graph = original(*args, **options)
            finally:
                decisions = self._chooser.end_graph()
            if type(graph).__name__ == "CompiledFxGraph":
                setattr(graph, _DECISIONS, decisions)
                self._fresh.add(id(graph))
            return graph

        return fx_codegen_and_compile

    def _announce(self, graph: Any) -> None:
        decisions = getattr(graph, _DECISIONS, None)
        if decisions is None:
            self._chooser.lines.elsewhere(
                "torch.compile",
                "a compiled graph came from a cache that was filled without pinner: what it holds "
                "is not known. Give the run a TORCHINDUCTOR_CACHE_DIR of its own",
            )
            return
        for line in decisions:
            self._announce_one(line)

    def _announce_one(self, line: Line) -> None:
        key = line["key"]
        question = Question(line["kernel"], line["source"], key, values.canonical(key))
        (held,) = live_configs([(line["config"], None)])
        entry = self._chooser.entry(question) if self._chooser.policy.enforcing else None
        if entry is not None and values.canonical(entry["config"]) != held.text:
            text = "a compile cache holds another choice than the lock: " + held.text
            self._chooser.lines.bypass(question, held.fields, text)
            return
        taken = Taken(held, line["alternatives"], self._how(entry), (), entry)
        self._chooser.settle(question, taken)

    def _how(self, entry: Optional[Entry]) -> str:
        """How a cached graph came to a decision: its key says that the same lock was in force."""
        policy = self._chooser.policy
        if entry is not None or not policy.enforcing:
            return "cached"
        return "missed" if policy.on_miss == "tune" else "fallback"
