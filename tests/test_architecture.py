"""The rooms of the house and who may enter which; see the architecture section of the documentation."""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "moe_core": set(),
    "mirage": set(),
    "detector": {"moe_core", "mirage"},
    "service": {"detector", "mirage", "moe_core"},
}
TORCH_WORLD = ("torch", "torchvision", "timm", "open_clip", "transformers")
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


MODULES = [path for room in ALLOWED for path in modules(room)]


def imported(tree: ast.AST, path: Path) -> Iterator[str]:
    """Full names of everything a module imports, also inside functions."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def at_import(path: Path) -> set[str]:
    """Top-level packages that importing the module runs, type-checking blocks and functions left out."""
    tree = ast.parse(path.read_text("utf-8"))

    class Pruned(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None: ...
        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None: ...
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    return {name.split(".")[0] for name in imported(Pruned().visit(tree), path)}


def test_every_room_has_modules():
    assert all(modules(room) for room in ALLOWED)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_what_they_may(path):
    room = path.relative_to(ROOT).parts[0]
    names = set(imported(ast.parse(path.read_text("utf-8")), path))
    entered = {name.split(".")[0] for name in names} & set(ALLOWED)
    assert entered - ALLOWED[room] <= {room}
    assert not any(name.split(".")[0] == "tests" for name in names)


def test_methods_never_import_one_another():
    for path in modules("moe_core/methods"):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts[:3])
        for name in imported(ast.parse(path.read_text("utf-8")), path):
            if name.startswith("moe_core.methods."):
                assert name == own or name.startswith(f"{own}."), f"{path} imports {name}"


@pytest.mark.parametrize("path", modules("mirage"), ids=lambda path: path.name)
def test_the_data_room_needs_no_torch_at_import(path):
    assert not at_import(path) & set(TORCH_WORLD)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_is_a_drawer_for_everything(path):
    assert path.stem not in VAGUE_NAMES


def test_the_rules_catch_a_breach():
    tree = ast.parse("def f():\n    from . import b\n    import service.cli\nfrom ..x import y\nimport torch")
    path = ROOT / "moe_core" / "methods" / "a.py"
    assert set(imported(tree, path)) == {
        "moe_core.methods.b",
        "service.cli",
        "moe_core.x.y",
        "torch",
    }


BLOCKED = textwrap.dedent(f"""
    import sys

    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {TORCH_WORLD!r}:
                raise ImportError(f"{{name}} must not be imported here")

    sys.meta_path.insert(0, Block())
    from service.cli import main
    sys.argv = ["omniaid", *sys.argv[1:]]
    main()
""")


def test_scanning_a_folder_needs_no_torch(tmp_path):
    Image.fromarray(np.arange(256 * 256 * 3, dtype=np.uint32).astype(np.uint8).reshape(256, 256, 3)).save(
        tmp_path / "a.png"
    )
    command = [sys.executable, "-c", BLOCKED, "scan", "--format", "jsonl", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"status":"ok"' in done.stdout


def test_help_is_light():
    """Showing help must load neither the runtime nor the decoders, so that it answers at once."""
    heavy = ("onnxruntime", "fastapi", "gradio", "pyarrow", *TORCH_WORLD)
    script = textwrap.dedent(f"""
        import sys
        from service.cli import main
        sys.argv = ["omniaid", "scan", "--help"]
        try:
            main()
        except SystemExit as end:
            assert not end.code
        assert not set({heavy!r}) & set(sys.modules), set({heavy!r}) & set(sys.modules)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
