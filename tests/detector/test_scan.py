import os
from pathlib import Path

from PIL import Image

from detector.scan import IMAGE_EXTENSIONS, find_inputs
from mirage.decode import FORMATS


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def found(*paths):
    return [(item.path, item.problem) for item in find_inputs(paths)]


def names(folder):
    return [str(item.path.relative_to(folder)) for item in find_inputs([folder])]


def test_a_folder_is_walked_depth_first_in_name_order(tmp_path):
    touch(tmp_path, "b.jpg", "a/z.png", "a/b/c.webp", "a.jpg", "c/1.gif", "B.JPG")
    assert names(tmp_path) == ["B.JPG", "a/b/c.webp", "a/z.png", "a.jpg", "b.jpg", "c/1.gif"]


def test_the_order_does_not_depend_on_creation(tmp_path):
    forward, backward = tmp_path / "f", tmp_path / "b"
    files = [f"{i:02d}.png" for i in range(30)]
    touch(forward, *files)
    touch(backward, *reversed(files))
    assert names(forward) == names(backward) == files


def test_only_picture_names_are_taken_inside_folders_but_named_files_always(tmp_path):
    touch(tmp_path, "note.txt", "._photo.jpg", "photo.jpg", "noextension", ".hidden.png")
    assert names(tmp_path) == [".hidden.png", "photo.jpg"]
    assert found(tmp_path / "note.txt") == [(tmp_path / "note.txt", None)]


def test_inputs_keep_the_order_of_the_arguments_and_files_may_repeat(tmp_path):
    touch(tmp_path, "a.jpg", "b.jpg")
    a, b = tmp_path / "a.jpg", tmp_path / "b.jpg"
    assert [path for path, _ in found(b, a, b)] == [b, a, b]


def test_a_path_that_does_not_exist_stays_an_input(tmp_path):
    assert found(tmp_path / "absent") == [(tmp_path / "absent", None)]


def test_a_loop_is_one_row_that_names_it(tmp_path):
    touch(tmp_path, "a/b/x.jpg")
    (tmp_path / "a/b/back").symlink_to(tmp_path / "a")
    (tmp_path / "a/b/self").symlink_to("self")
    rows = found(tmp_path)
    assert rows == [
        (
            tmp_path / "a/b/back",
            f"the symbolic link leads back to {tmp_path / 'a'}; the loop was not followed",
        ),
        (tmp_path / "a/b/self", "the symbolic link leads to itself; the loop was not followed"),
        (tmp_path / "a/b/x.jpg", None),
    ]


def test_two_folders_that_link_to_each_other_end(tmp_path):
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a/to-b").symlink_to(tmp_path / "b")
    (tmp_path / "b/to-a").symlink_to(tmp_path / "a")
    rows = found(tmp_path)
    assert [path.name for path, problem in rows if problem is None] == ["1.jpg", "2.jpg"]
    assert [path for path, problem in rows if problem] == [tmp_path / "a/to-b/to-a"]


def test_a_folder_reached_by_two_names_is_visited_once_without_an_error(tmp_path):
    touch(tmp_path, "real/x.jpg")
    (tmp_path / "also").symlink_to(tmp_path / "real")
    assert found(tmp_path) == [(tmp_path / "also/x.jpg", None)]
    assert len(found(tmp_path / "real", tmp_path / "real", tmp_path)) == 1


def test_dangling_links_and_fifos_with_picture_names_stay_inputs(tmp_path):
    (tmp_path / "gone.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe")
    assert names(tmp_path) == ["gone.jpg", "pipe.png"]


def test_names_that_are_not_utf8_or_hold_newlines(tmp_path):
    odd = [b"caf\xe9.jpg", b"two\nlines.jpg", b"\xff.png"]
    for name in odd:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    assert [os.fsencode(item.path.name) for item in find_inputs([tmp_path])] == sorted(odd)


def test_a_very_deep_tree(tmp_path):
    """Deeper than Python's recursion limit and, in the end, than a path may be long: a row, not a crash."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for name in ["d"] * 1_050 + ["long" * 50] * 10:
        os.mkdir(name, dir_fd=descriptor)
        inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    touch(tmp_path, "z.jpg")
    rows = found(tmp_path)
    remove_deep(tmp_path / "d")
    assert rows[-1] == (tmp_path / "z.jpg", None)
    assert len(rows) == 2 and "name too long" in rows[0][1]


def remove_deep(top):
    """Remove a chain of folders too deep for shutil, by pulling each one up before its parent goes."""
    spare = top.with_name("spare")
    while inner := next(top.iterdir(), None):
        inner.rename(spare)
        top.rmdir()
        spare.rename(top)
    top.rmdir()


def test_an_empty_folder_has_no_inputs(tmp_path):
    assert found(tmp_path) == []


def test_the_extensions_are_those_of_the_decoders_formats():
    """Leaving out names that mostly belong to other things: raw planes and font metrics."""
    Image.init()
    known = {name for name, kind in Image.registered_extensions().items() if kind in FORMATS}
    assert known - {".bw", ".rgb", ".rgba", ".pfm"} | {".heic", ".heif"} == IMAGE_EXTENSIONS
