"""Folder layouts of public test sets, on tiny trees of their shape."""

from pathlib import Path

import pytest

from detector.evaluation.errors import EvaluationError
from detector.evaluation.layouts import LAYOUTS, Facts, find_pictures
from detector.evaluation.samples import open_pictures

TREES: dict[str, dict[str, Facts]] = {
    "genimage": {
        "Midjourney/imagenet_midjourney/val/ai/GLIDE_1000_1.png": Facts(
            "ai", "Midjourney", "Midjourney", "Midjourney", "val"
        ),
        "Midjourney/imagenet_midjourney/val/nature/ILSVRC2012_val_1.JPEG": Facts(
            "real", "ImageNet", "Midjourney", "Midjourney", "val"
        ),
        "stable_diffusion_v_1_4/imagenet_ai_0419_sdv4/train/ai/1.png": Facts(
            "ai", *("Stable Diffusion 1.4",) * 3, "train"
        ),
        # As the Readme draws it, without the archives' own folder.
        "Stable Diffusion V1.5/val/nature/n01440764_1.JPEG": Facts(
            "real", "ImageNet", *("Stable Diffusion 1.5",) * 2, "val"
        ),
    },
    "aigcdetectbenchmark": {
        "progan/cat/0_real/1.png": Facts("real", "", "progan/cat", "ProGAN"),
        "progan/cat/1_fake/1.png": Facts("ai", "ProGAN", "progan/cat", "ProGAN"),
        "whichfaceisreal/1_fake/1.jpeg": Facts("ai", "StyleGAN", "whichfaceisreal", "StyleGAN"),
        "stable_diffusion_v_1_5/1_fake/1.png": Facts(
            "ai", "Stable Diffusion 1.5", "stable_diffusion_v_1_5", "Stable Diffusion 1.5"
        ),
        "newest-model/0_real/1.png": Facts("real", "", "newest-model", "newest-model"),
    },
    "chameleon": {
        "test/0_real/0a4dcb15-6fe3.jpg": Facts("real", "photographers", "Chameleon", "", "test"),
        "test/1_fake/1.jpg": Facts("ai", "not named in Chameleon", "Chameleon", "", "test"),
    },
    "drct-2m": {
        "DRCT-2M/sdxl-turbo/val2017/1.png": Facts("ai", *("sdxl-turbo",) * 3, "val"),
        "DRCT-2M/stable-diffusion-v1-4/train2017/1.png": Facts("ai", *("Stable Diffusion 1.4",) * 3, "train"),
        "MSCOCO/val2017/1.jpg": Facts("real", "MSCOCO", "MSCOCO", "", "val"),
    },
    "mirage-test": {
        "Human/0_real/1.png": Facts("real", "", "human", "", "", "human"),
        "Human/1_fake/Painter 9/1.png": Facts("ai", "Painter 9", "human/Painter 9", "", "", "human"),
        "Anime/Painter 8/1_fake/1.png": Facts("ai", "Painter 8", "anime/Painter 8", "", "", "anime"),
        "Scene/1_fake/1.png": Facts("ai", "not named in mirage-test", "scene", "", "", "scene"),
    },
    "cifake": {
        "test/REAL/0001 (2).jpg": Facts("real", "CIFAR-10", "CIFAKE", "", "test"),
        "test/FAKE/1.jpg": Facts("ai", "Stable Diffusion 1.4", "CIFAKE", "", "test"),
        "train/FAKE/1.jpg": Facts("ai", "Stable Diffusion 1.4", "CIFAKE", "", "train"),
    },
    "plain": {
        "real/1.png": Facts("real", "", "plain"),
        "fake/Painter 7/1.png": Facts("ai", "Painter 7", "Painter 7"),
        "fake/1.png": Facts("ai", "not named in plain", "plain"),
        "test/AI/ADM/1.png": Facts("ai", "ADM", "ADM", "", "test"),
    },
}


def plant(root: Path, paths: list[str] | dict[str, Facts]) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")
    return root


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_found_and_read(name, tmp_path):
    tree = find_pictures(plant(tmp_path / name, TREES[name]))
    assert tree.layout == name
    assert {str(found.path): found.facts for found in tree.found} == TREES[name]
    assert tree.left_out == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_named_layout_is_taken_whatever_the_folder_is_called(name, tmp_path):
    tree = find_pictures(plant(tmp_path / "x", TREES[name]), name)
    labels = {str(found.path): found.facts.label for found in tree.found}
    assert labels == {path: facts.label for path, facts in TREES[name].items()}


def test_drct_with_real_pictures_beside_each_generator(tmp_path):
    """OmniAID's evaluation puts both classes below every generator."""
    paths = [
        "sd-turbo/val2017/0_real/1.jpg",
        "sd-turbo/val2017/1_fake/1.png",
        "sd-turbo/val2017/1_fake/2.png",
    ]
    tree = find_pictures(plant(tmp_path, paths))
    assert tree.layout == "drct-2m"
    assert [(found.facts.label, found.facts.subset) for found in tree.found] == [
        ("real", "sd-turbo"), ("ai", "sd-turbo"), ("ai", "sd-turbo"),
    ]  # fmt: skip


def test_one_generator_of_genimage_alone_takes_the_folders_name(tmp_path):
    tree = find_pictures(plant(tmp_path / "imagenet_ai_0508_adm", ["val/ai/1.png", "val/nature/1.JPEG"]))
    assert tree.layout == "genimage"
    assert [found.facts.generator for found in tree.found] == ["ADM", "ImageNet"]


def test_nameless_trees_are_not_taken_for_a_set_they_may_not_be(tmp_path):
    """The shapes of Chameleon and CIFAKE are common, and taking them would invent generators."""
    tree = find_pictures(plant(tmp_path / "a", ["test/0_real/1.png", "test/1_fake/1.png"]))
    assert (tree.layout, tree.found[1].facts.generator) == ("plain", "not named in a")
    tree = find_pictures(plant(tmp_path / "b", ["test/REAL/1.png", "test/FAKE/1.png"]))
    assert (tree.layout, tree.found[0].facts.split) == ("plain", "test")


def test_files_outside_the_layout_are_counted_and_other_files_ignored(tmp_path):
    root = plant(tmp_path, ["real/1.png", "fake/1.png", "cover.png", "notes.txt", "real/._1.png"])
    pictures = open_pictures(root)
    assert len(pictures.samples) == 2
    assert (pictures.info.left_out, pictures.example_left_out) == (1, "cover.png")


def test_an_unknown_tree_is_one_sentence_that_lists_the_layouts(tmp_path):
    with pytest.raises(EvaluationError) as caught:
        find_pictures(plant(tmp_path, ["cats/1.png", "dogs/1.png"]))
    assert "\n" not in str(caught.value)
    assert all(f"{name}: {layout.shape}" in str(caught.value) for name, layout in LAYOUTS.items())


@pytest.mark.parametrize(
    ("paths", "options", "reason"),
    [
        (["real/fake/1.png"], {}, "lies in a folder for real and in one for AI pictures"),
        (["notes.txt"], {}, "holds no picture files"),
        (["real/1.png"], {"layout": "coco"}, "layout 'coco' does not exist; choose one of: auto, mirage"),
        (["real/1.png"], {"layout": "genimage"}, "has none of the layouts that are known"),
        (["real/1.png"], {"split": "val"}, "has no split 'val'; it is not divided"),
        (["test/real/1.png"], {"split": "val"}, "has no split 'val'; it has: test"),
        (["real/1.png"], {"layout": "mirage"}, "holds no manifest.parquet"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said(tmp_path, paths, options, reason):
    from mirage.errors import MirageError

    with pytest.raises((EvaluationError, MirageError), match=reason):
        open_pictures(plant(tmp_path, paths), **options)


def test_the_test_part_is_taken_unless_another_is_named(tmp_path):
    root = plant(tmp_path / "cifake", TREES["cifake"])
    assert [sample.split for sample in open_pictures(root).samples] == ["test", "test"]
    assert len(open_pictures(root, split="train").samples) == 1
    assert len(open_pictures(root, split="all").samples) == 3
    assert open_pictures(root).info.split == "test"


def test_a_limit_draws_by_hash_from_every_source_and_class(tmp_path):
    root = plant(
        tmp_path, [f"{kind}/{maker}/{i}.png" for kind in ("real", "fake") for maker in "ab" for i in range(9)]
    )
    few, more = (open_pictures(root, limit_per_source=limit).samples for limit in (2, 5))
    counts = {(s.label, s.source): sum(o.source == s.source and o.label == s.label for o in few) for s in few}
    assert set(counts.values()) == {2} and len(counts) == 4
    assert {s.key for s in few} < {s.key for s in more}, "a larger limit keeps what a smaller one took"


def test_names_that_are_not_unicode_can_be_read(tmp_path):
    import os

    folder = plant(tmp_path, ["real/1.png"]) / "fake"
    folder.mkdir()
    name = os.fsdecode(b"caf\xe9.png")
    (folder / name).write_bytes(b"bytes")
    pictures = open_pictures(tmp_path)
    odd = next(sample for sample in pictures.samples if sample.label == "ai")
    assert odd.key == "fake/caf\\xe9.png" and pictures.read(odd) == b"bytes"
