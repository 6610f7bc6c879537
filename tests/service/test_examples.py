"""The example pictures and what the table beside them says."""

from service.examples import Example, find_examples
from service.render import gallery

TABLE = """
| file | what | origin and rights | truth |
|---|---|---|---|
| `cat.jpg` | a cat | somebody, CC0 | real |
| `face-1.png` | a face; `code` | GAN | AI |
| `odd_one.webp` | enlarged | net | borderline: real, but drawn |
"""


def test_pictures_and_truths_are_found(tmp_path):
    (tmp_path / "README.md").write_text(TABLE)
    for name in ("odd_one.webp", "cat.jpg", "face-1.png", "unlisted.PNG", "make.py"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.jpg").mkdir()
    found = {example.caption: example.truth for example in find_examples(tmp_path)}
    assert found == {"cat": "real", "face 1": "AI", "odd one": "borderline", "unlisted": ""}


def test_no_folder_means_no_examples(tmp_path):
    assert find_examples(tmp_path / "absent") == []


def test_the_gallery_escapes_names_and_truths(tmp_path):
    html = gallery([Example(tmp_path / 'a"><script>.png', "<b>AI</b>")])
    assert "<script>" not in html and "<b>" not in html
    assert "examples/a%22%3E%3Cscript%3E.png" in html
