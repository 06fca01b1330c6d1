"""Import hooks run around the named module, and the module cannot tell."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.machinery
import importlib.resources
import importlib.util
import inspect
import pickle
import pkgutil
import runpy
import subprocess
import sys
import threading
import types
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pinner.inside import faults, imports
from tests import lanes
from tests.session_rig import SessionRig


class Place:
    """A folder on sys.path whose modules are forgotten after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[str] = []

    def module(self, name: str, code: str = "") -> str:
        """Write a module that says when its code runs."""
        path = self.folder / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import builtins\nbuiltins.pinner_events.append('{name} runs')\n{code}")
        importlib.invalidate_caches()
        return name

    def hook(self, name: str) -> None:
        """Log before and after the code of a module."""
        imports.before(name, lambda: self.events.append(f"before {name}"))
        imports.after(name, lambda module: self.events.append(f"after {module.__name__}"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Hooks and modules of one test; nothing of them is left."""
    here = Place(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_hooks", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr("builtins.pinner_events", here.events, raising=False)
    known = set(sys.modules)
    imports.install()
    yield here
    for name in set(sys.modules) - known:
        del sys.modules[name]


ALL = ["before kernels", "kernels runs", "after kernels"]


class TestOrder:
    def test_callbacks_surround_the_modules_own_code(self, place: Place) -> None:
        place.hook(place.module("kernels"))
        importlib.import_module("kernels")
        assert place.events == ALL

    def test_they_run_once_however_often_it_is_imported(self, place: Place) -> None:
        place.hook(place.module("kernels"))
        importlib.import_module("kernels")
        importlib.import_module("kernels")
        assert place.events == ALL

    def test_an_imported_module_is_called_for_at_once(self, place: Place) -> None:
        importlib.import_module(place.module("kernels"))
        place.hook("kernels")
        assert place.events == ["kernels runs", "after kernels"]

    def test_a_hook_added_while_the_module_runs_waits_for_its_end(self, place: Place) -> None:
        imports.before("kernels", lambda: place.hook("kernels"))
        importlib.import_module(place.module("kernels", "DONE = 1\n"))
        assert place.events == ["kernels runs", "after kernels"]

    def test_a_module_of_a_package_and_its_package(self, place: Place) -> None:
        place.hook(place.module("package.kernels"))
        place.hook("package")
        place.module("package.__init__", "from . import kernels\n")
        importlib.import_module("package")
        assert place.events == [
            "before package",
            "package.__init__ runs",
            "before package.kernels",
            "package.kernels runs",
            "after package.kernels",
            "after package",
        ]

    def test_what_the_callback_puts_in_place_is_what_importers_get(self, place: Place) -> None:
        """`from kernels import launch` in the package runs after the callback."""
        place.module("package.kernels", "def launch(): return 'plain'\n")
        place.module("package.__init__", "from .kernels import launch\n")
        imports.after("package.kernels", lambda module: setattr(module, "launch", lambda: "mine"))
        assert importlib.import_module("package").launch() == "mine"

    def test_looking_for_a_module_runs_nothing(self, place: Place) -> None:
        """`find_spec` is how programs ask whether a library is installed."""
        place.hook(place.module("kernels"))
        assert importlib.util.find_spec("kernels") is not None
        assert place.events == []

    def test_a_module_that_does_not_exist_is_not_found(self, place: Place) -> None:
        place.hook("no_such_module")
        with pytest.raises(ModuleNotFoundError) as caught:
            importlib.import_module("no_such_module")
        assert caught.value.name == "no_such_module"


class TestAgain:
    """What the module's code undoes is done again."""

    def test_reload(self, place: Place) -> None:
        place.hook(place.module("kernels"))
        module = importlib.import_module("kernels")
        assert importlib.reload(module) is module
        assert place.events == ALL * 2

    def test_a_first_import_that_failed(self, place: Place) -> None:
        place.hook(place.module("kernels", "raise OSError('busy')\n"))
        with pytest.raises(OSError, match="busy"):
            importlib.import_module("kernels")
        assert "kernels" not in sys.modules
        (place.folder / "kernels.py").unlink()
        place.module("kernels", "# now it works, and has another size\n")
        importlib.import_module("kernels")
        assert place.events == [*ALL[:2], *ALL]

    def test_a_module_that_was_forgotten(self, place: Place) -> None:
        place.hook(place.module("kernels"))
        importlib.import_module("kernels")
        del sys.modules["kernels"]
        importlib.import_module("kernels")
        assert place.events == ALL * 2


class TestErrors:
    def test_an_invalid_pin_reaches_the_importer_each_time(self, place: Place) -> None:
        def refuse(module: types.ModuleType) -> None:
            raise faults.InvalidPin("kernels:k: BT=7 is not among the candidates")

        imports.after(place.module("kernels"), refuse)
        for _ in range(2):
            with pytest.raises(faults.InvalidPin, match="BT=7"):
                importlib.import_module("kernels")
            assert "kernels" not in sys.modules

    def test_any_other_error_ends_the_process(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a real process: tests/pinner/test_inject_faults.py."""
        died: list[str] = []

        def die(cause: str) -> None:
            died.append(cause)
            raise SystemExit(96)

        monkeypatch.setattr(faults, "die", die)
        imports.after(place.module("kernels"), lambda module: {}["missing"])
        with pytest.raises(SystemExit):
            importlib.import_module("kernels")
        assert died[0].startswith("cannot hook kernels: KeyError: 'missing' (")

    def test_an_interrupt_in_a_callback_is_an_interrupt(self, place: Place) -> None:
        def interrupted(module: types.ModuleType) -> None:
            raise KeyboardInterrupt

        imports.after(place.module("kernels"), interrupted)
        with pytest.raises(KeyboardInterrupt):
            importlib.import_module("kernels")


def facts_about(module: types.ModuleType) -> dict[str, Any]:
    """What a program can see of how a module was loaded."""
    spec = module.__spec__
    assert spec is not None
    return {
        "loader": type(module.__loader__),
        "same": spec.loader is module.__loader__,
        "spec": (spec.name, spec.origin, spec.cached, spec.submodule_search_locations),
        "names": sorted(vars(module)),
        "file": module.__file__,
        "package": module.__package__,
        "source": inspect.getsource(module),
    }


class TestTheModuleCannotTell:
    def both(self, place: Place, code: str = "") -> tuple[types.ModuleType, types.ModuleType]:
        """The same module imported without hooks and with them."""
        place.module("package.__init__")
        place.module("package.kernels", code)
        plain = importlib.import_module("package.kernels")
        facts = facts_about(plain)
        for name in ("package", "package.kernels"):
            del sys.modules[name]
        place.hook("package.kernels")
        place.hook("package")
        hooked = importlib.import_module("package.kernels")
        assert "after package.kernels" in place.events
        assert facts_about(hooked) == facts
        return plain, hooked

    def test_its_own_attributes(self, place: Place) -> None:
        self.both(place)

    def test_what_its_code_sees_while_it_runs(self, place: Place) -> None:
        code = "SEEN = type(__loader__), type(__spec__.loader), __spec__.loader is __loader__\n"
        plain, hooked = self.both(place, code)
        assert hooked.SEEN == plain.SEEN

    def test_its_data_files(self, place: Place) -> None:
        place.hook(place.module("package.__init__"))
        place.hook("package")
        (place.folder / "package" / "table.txt").write_text("42")
        package = importlib.import_module("package")
        assert importlib.resources.files(package).joinpath("table.txt").read_text() == "42"
        assert importlib.resources.files("package").joinpath("table.txt").read_text() == "42"
        assert pkgutil.get_data("package", "table.txt") == b"42"

    def test_pickles_of_what_it_defines(self, place: Place) -> None:
        place.hook(place.module("kernels", "class Config: pass\ndef launch(): pass\n"))
        module = importlib.import_module("kernels")
        for value in (module.Config, module.launch):
            assert pickle.loads(pickle.dumps(value)) is value

    def test_its_spec_before_it_is_imported(self, place: Place) -> None:
        """Tools look at the loader of a spec: its type, its source, its copies."""
        place.hook(place.module("kernels", "ANSWER = 42\n"))
        spec = importlib.util.find_spec("kernels")
        assert spec is not None
        loader: Any = spec.loader
        assert isinstance(loader, importlib.machinery.SourceFileLoader)
        assert loader.get_source("kernels").endswith("ANSWER = 42\n")
        assert loader.path == loader.get_filename("kernels") == str(place.folder / "kernels.py")
        assert not loader.is_package("kernels")
        assert repr(loader).startswith("<_frozen_importlib_external.SourceFileLoader")
        for twin in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
            assert type(twin) is importlib.machinery.SourceFileLoader
            assert vars(twin) == vars(twin) | {"name": "kernels", "path": loader.path}
        assert place.events == []

    def test_a_module_made_by_hand_from_its_spec(self, place: Place) -> None:
        place.hook(place.module("kernels", "ANSWER = 42\n"))
        spec = importlib.util.find_spec("kernels")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.ANSWER == 42
        assert place.events == ALL

    def test_run_as_a_program(self, place: Place) -> None:
        """`python -m kernels` runs it as __main__: it is not an import of that name."""
        place.hook(place.module("kernels", "NAME = __name__\n"))
        assert runpy.run_module("kernels")["NAME"] == "kernels"
        assert runpy.run_module("kernels", run_name="__main__")["NAME"] == "__main__"
        assert place.events == ["kernels runs"] * 2

    def test_a_traceback_through_it_shows_its_lines(self, place: Place) -> None:
        place.hook(place.module("kernels", "def launch():\n    raise ValueError('here')\n"))
        with pytest.raises(ValueError) as caught:
            importlib.import_module("kernels").launch()
        assert "raise ValueError('here')" in str(caught.traceback[-1].statement)


class TestLoadersOfAllKinds:
    def test_a_zip_file(self, place: Place) -> None:
        archive = place.folder / "library.zip"
        with zipfile.ZipFile(archive, "w") as out:
            out.writestr("kernels.py", "ANSWER = 42\n")
            out.writestr("others.py", "ANSWER = 43\n")
        sys.path.insert(0, str(archive))
        place.hook("kernels")
        try:
            assert importlib.import_module("kernels").ANSWER == 42
            assert importlib.import_module("others").ANSWER == 43
        finally:
            sys.path.remove(str(archive))
        assert place.events == ["before kernels", "after kernels"]

    @pytest.mark.parametrize("name", ["_bisect", "xxlimited", "__hello__"])
    def test_extension_built_in_and_frozen_modules(self, place: Place, name: str) -> None:
        saved = sys.modules.pop(name, None)
        place.hook(name)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            pytest.skip(f"this Python has no module {name}")
        finally:
            if saved is not None:
                sys.modules[name] = saved
        assert place.events == [f"before {name}", f"after {name}"]

    def test_a_namespace_package_has_no_code_to_wait_for(self, place: Place) -> None:
        place.hook("space")
        place.hook(place.module("space.kernels"))
        module = importlib.import_module("space.kernels")
        assert module.__name__ == "space.kernels"
        assert list(sys.modules["space"].__path__) == [str(place.folder / "space")]
        assert place.events == [
            "before space.kernels",
            "space.kernels runs",
            "after space.kernels",
        ]

    def test_a_lazy_loader_defers_the_callbacks_with_the_code(self, place: Place) -> None:
        """As `importlib.util` documents: the spec's loader is wrapped by the program."""
        place.hook(place.module("kernels", "ANSWER = 42\n"))
        spec = importlib.util.find_spec("kernels")
        assert spec is not None
        assert spec.loader is not None
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules["kernels"] = module
        spec.loader.exec_module(module)
        assert place.events == []
        assert module.ANSWER == 42
        assert place.events == ALL

    @pytest.mark.service
    def test_loaders_from_before_exec_module(self, tmp_path: Path) -> None:
        """Python 3.8 to 3.11 still take finders that know `find_module` and `load_module` only."""
        code = """
import sys, types
class Old:
    def find_module(self, name, path=None):
        return self if name == "kernels" else None
    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        module.__loader__ = self
        events.append("runs")
        return module
events = []
sys.meta_path.insert(1, Old())
from pinner.inside import imports
imports.before("kernels", lambda: events.append("before"))
imports.after("kernels", lambda module: events.append("after " + module.__name__))
import kernels
print(events, type(kernels.__loader__).__name__)
"""
        rig = SessionRig(tmp_path / "session")
        python = lanes.other_python("3.8")
        done = rig.run([python, "-c", code])
        assert done.stdout == "['before', 'runs', 'after kernels'] Old\n", done.stderr


class OuterFinder:
    """An import hook of another library: it asks all of sys.meta_path again, itself left out."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        self.busy: set[str] = set()
        self.wrap = wrap

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "kernels" or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        assert spec is not None
        spec.loader = self.wrap(spec.loader)
        return spec


class Chained:
    """A loader around a loader, as wrapt makes them."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self.loader.exec_module(module)


class TestBesideOtherHooks:
    @pytest.mark.parametrize("position", [0, 1])
    @pytest.mark.parametrize("wrap", [lambda loader: loader, Chained])
    def test_callbacks_run_once(
        self, place: Place, position: int, wrap: Callable[[Any], Any]
    ) -> None:
        place.hook(place.module("kernels"))
        sys.meta_path.insert(position, OuterFinder(wrap))  # type: ignore[arg-type]
        importlib.import_module("kernels")
        assert place.events == ALL

    def test_installing_twice_hooks_once(self, place: Place) -> None:
        imports.install()
        place.hook(place.module("kernels"))
        importlib.import_module("kernels")
        assert place.events == ALL


class TestThreads:
    def test_two_importers_and_one_run(self, place: Place) -> None:
        place.hook(place.module("kernels", "import time; time.sleep(0.05)\n"))
        gate = threading.Barrier(8)

        def work() -> None:
            gate.wait()
            importlib.import_module("kernels")
            place.events.append("used")

        threads = [threading.Thread(target=work) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert place.events == [*ALL, *["used"] * 8]

    def test_imports_of_each_other_in_two_threads(self, place: Place) -> None:
        """Import locks are per module: a lock of ours around them would deadlock here."""
        place.module("left", "import time; time.sleep(0.02); import right\n")
        place.module("right", "import time; time.sleep(0.02); import left\n")
        place.hook("left")
        place.hook("right")
        names = ("left", "right")
        threads = [
            threading.Thread(target=importlib.import_module, args=(name,), daemon=True)
            for name in names
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(timeout=30)
        assert not any(each.is_alive() for each in threads)
        assert {f"after {name}" for name in names} <= set(place.events)


def test_modules_nobody_asked_about_are_not_searched_for(place: Place) -> None:
    """The finder answers at once; it does not even look at the other finders."""
    finder = sys.meta_path[0]
    asked: list[str] = []

    class Witness:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            asked.append(name)

    sys.meta_path.insert(1, Witness())  # type: ignore[arg-type]
    assert finder.find_spec("anything", None) is None
    assert asked == []


def test_a_hooked_module_that_a_program_imports_on_its_way_in(tmp_path: Path) -> None:
    """The real case: Triton's autotuner is hooked before anything of Triton is loaded."""
    rig = SessionRig(tmp_path / "session")
    code = """
import sys
from pinner.inside import imports
loaded = set(sys.modules)
order = []
imports.before("torch", lambda: order.append("before torch"))
imports.after("torch", lambda module: order.append("after torch " + module.__version__))
imports.after("torch.optim.optimizer", lambda module: order.append(module.Optimizer.__name__))
assert not {"torch", "triton"} & set(sys.modules)
import torch
print(order == ["before torch", "Optimizer", "after torch " + torch.__version__], order)
"""
    done = rig.script(code)
    assert done.stdout.startswith("True"), (done.stdout, done.stderr)


def test_python_3_8_to_3_13_agree(tmp_path: Path) -> None:
    """One program through the whole range of import machinery."""
    code = """
import importlib, sys
from pinner.inside import imports
events = []
imports.before("colorsys", lambda: events.append("before"))
imports.after("colorsys", lambda module: events.append("after"))
import colorsys
importlib.reload(colorsys)
print(events, type(colorsys.__loader__).__name__, colorsys.__spec__.loader is colorsys.__loader__)
"""
    for number, version in enumerate(("3.8", "3.9", "3.10", "3.12", "3.13")):
        with contextlib.suppress(pytest.skip.Exception):
            python = lanes.other_python(version)
            rig = SessionRig(tmp_path / str(number))
            done: subprocess.CompletedProcess[str] = rig.run([python, "-W", "error", "-c", code])
            expected = "['before', 'after', 'before', 'after'] SourceFileLoader True\n"
            assert done.stdout == expected, done.stderr
