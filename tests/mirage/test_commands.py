import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from mirage.commands import app
from tests.mirage.conftest import encode, picture


def test_build_then_stats(tmp_path: Path, write_recipe):
    (tmp_path / "pictures").mkdir()
    for seed in range(3):
        (tmp_path / "pictures" / f"{seed}.png").write_bytes(encode(picture(seed)))
    recipe = write_recipe({"kind": "folder", "name": "drawn", "path": "pictures"})
    runner = CliRunner()
    built = runner.invoke(app, ["build", str(recipe), "--out", str(tmp_path / "out"), "--workers", "1"])
    assert built.exit_code == 0
    assert "seen 3 = kept 3 + rejected 0 + duplicate 0" in built.output
    shown = runner.invoke(app, ["stats", str(tmp_path / "out")])
    assert shown.exit_code == 0
    assert "camera" in shown.output
    assert "seen 3 = kept 3 + rejected 0 + duplicate 0" in shown.output


BLOCKED = """
import sys
for name in ("yaml", "pyarrow", "webdataset", "torch", "ncnn", "openvino"):
    sys.modules[name] = None
import mirage.commands, mirage.decode, mirage.transforms, mirage.read, mirage.build
from mirage.errors import MirageError
from pathlib import Path
try:
    mirage.build.build(Path("x.yaml"), Path("out"))
except MirageError as error:
    print(error)
"""


def test_everything_imports_on_the_base_install_and_names_the_missing_extra():
    answer = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."}
    )
    assert answer.stderr == ""
    assert answer.stdout == (
        "this needs the package yaml, which is not installed: pip install 'omniaid[train]'\n"
    )


def test_reading_shards_needs_no_torch(tmp_path: Path, write_recipe):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(encode(picture(1)))
    recipe = write_recipe({"kind": "folder", "name": "drawn", "path": "pictures"})
    CliRunner().invoke(app, ["build", str(recipe), "--out", str(tmp_path / "out"), "--workers", "1"])
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from mirage.read import list_shards, read_shards\n"
        f"print(len(list(read_shards(list_shards(Path({str(tmp_path / 'out')!r}), 'train')))))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."}
    )
    assert answer.stdout == "1\n", answer.stderr
