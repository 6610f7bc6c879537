"""Folder layouts of public test sets: from a picture's path to its class, generator, subset and split.

A layout is one function over the parts of a relative path. `LAYOUTS` lists them, the particular ones first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from detector.evaluation.errors import EvaluationError
from detector.paths import printable
from detector.scan import find_inputs

AUTO = "auto"
REAL, AI = "real", "ai"
MIXED = "mixed"
NUMBERED = {"0_real": REAL, "1_fake": AI}
SPLITS = {
    "train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
    "train2017": "train", "val2017": "val",
}  # fmt: skip

# What the sets call a generator -> its name elsewhere in this project; others stay as they are.
GENERATORS = {
    "adm": "ADM", "imagenet_ai_0508_adm": "ADM",
    "biggan": "BigGAN", "imagenet_ai_0419_biggan": "BigGAN",
    "cyclegan": "CycleGAN", "dalle2": "DALL-E 2", "gaugan": "GauGAN",
    "glide": "GLIDE", "imagenet_glide": "GLIDE",
    "ldm-text2im-large-256": "LDM",
    "midjourney": "Midjourney", "imagenet_midjourney": "Midjourney",
    "progan": "ProGAN", "stargan": "StarGAN", "stylegan": "StyleGAN", "stylegan2": "StyleGAN2",
    "sd_xl": "SDXL", "stable-diffusion-xl-base-1.0": "SDXL",
    "stable-diffusion-v1-4": "Stable Diffusion 1.4", "stable_diffusion_v_1_4": "Stable Diffusion 1.4",
    "stable diffusion v1.4": "Stable Diffusion 1.4", "imagenet_ai_0419_sdv4": "Stable Diffusion 1.4",
    "stable-diffusion-v1-5": "Stable Diffusion 1.5", "stable_diffusion_v_1_5": "Stable Diffusion 1.5",
    "stable diffusion v1.5": "Stable Diffusion 1.5", "imagenet_ai_0424_sdv5": "Stable Diffusion 1.5",
    "stable-diffusion-2-1": "Stable Diffusion 2.1",
    "vqdm": "VQDM", "imagenet_ai_0419_vqdm": "VQDM",
    "whichfaceisreal": "StyleGAN",  # its pictures, by the set's own description
    "wukong": "Wukong", "imagenet_ai_0424_wukong": "Wukong",
}  # fmt: skip
DRCT_GENERATORS = frozenset((
    "ldm-text2im-large-256", "stable-diffusion-v1-4", "stable-diffusion-v1-5", "stable-diffusion-2-1",
    "stable-diffusion-xl-base-1.0", "stable-diffusion-xl-refiner-1.0", "sd-turbo", "sdxl-turbo",
    "lcm-lora-sdv1-5", "lcm-lora-sdxl", "sd-controlnet-canny", "sd21-controlnet-canny",
    "controlnet-canny-sdxl-1.0", "stable-diffusion-inpainting", "stable-diffusion-2-inpainting",
    "stable-diffusion-xl-1.0-inpainting-0.1",
))  # fmt: skip
MIRAGE_DOMAINS = frozenset(("Human", "Animal", "Object", "Scene", "Anime"))
PLAIN_NAMES = {
    "real": REAL, "reals": REAL, "0_real": REAL, "nature": REAL, "natural": REAL, "authentic": REAL,
    "fake": AI, "fakes": AI, "1_fake": AI, "ai": AI, "generated": AI, "synthetic": AI,
}  # fmt: skip


class Facts(NamedTuple):
    """What a path says of its picture; unknown texts are empty.

    Attributes:
        label: `real` or `ai`.
        generator: of AI pictures the model, of real ones the collection they come from.
        source: what one draw of the bootstrap takes as a whole.
        subset: real and AI pictures that the set compares with one another.
    """

    label: str
    generator: str
    source: str
    subset: str = ""
    split: str = ""
    domain: str = MIXED


class Found(NamedTuple):
    """One picture of a tree: its path below the root, and what that says."""

    path: Path
    facts: Facts


class Layout(NamedTuple):
    """How one set lays out its folders.

    Attributes:
        shape: of its paths, for people.
        read: facts of a path, given its parts (the last is the file name) and the root's name; None
            when the path does not belong to the layout.
        hint: `auto` takes the layout only where a folder on the way is called so, because its shape
            alone does not tell it from others.
    """

    shape: str
    read: Callable[[tuple[str, ...], str], Facts | None]
    hint: str = ""


class Tree(NamedTuple):
    """The pictures of a folder: which layout, those with a class, and the paths of those without."""

    layout: str
    found: list[Found]
    left_out: list[Path]


def name_generator(folder: str) -> str:
    """The project's name of a generator that a set calls `folder`."""
    return GENERATORS.get(folder.lower(), folder)


def read_genimage(parts: tuple[str, ...], root: str) -> Facts | None:
    """GenImage: Midjourney/[imagenet_midjourney/]val/nature/x.JPEG; also one generator's folder alone.

    Source: the set's own Readme; archives unpack to a folder imagenet_* in between.
    """
    for place in range(min(3, len(parts) - 2)):
        split, kind = parts[place], parts[place + 1]
        if split in ("train", "val") and kind in ("nature", "ai"):
            folders = parts[:place] or (root,)
            coded = next((name for name in folders if name.lower() in GENERATORS), folders[0])
            subset = name_generator(coded)
            label = REAL if kind == "nature" else AI
            return Facts(label, "ImageNet" if label == REAL else subset, subset, subset, split)
    return None


def read_mirage_test(parts: tuple[str, ...], root: str) -> Facts | None:
    """Mirage-Test: Human/[.../]1_fake/[generator/]x.png, the first folder a domain.

    Source: the released loader, which takes the first folder as the domain and looks for 0_real and
    1_fake at any depth; where the generator stands is not documented.
    """
    place = _find(parts, NUMBERED)
    if place is None or place == 0 or parts[0] not in MIRAGE_DOMAINS:
        return None
    label, others = NUMBERED[parts[place]], (*parts[1:place], *parts[place + 1 : -1])
    name = name_generator(others[-1]) if others else f"not named in {root}"
    domain = parts[0].lower()
    return Facts(label, "" if label == REAL else name, "/".join((domain, *others)), "", "", domain)


def read_drct(parts: tuple[str, ...], root: str) -> Facts | None:
    """DRCT-2M: [DRCT-2M/]sdxl-turbo/val2017/[0_real|1_fake/]x.png, real ones also in MSCOCO/val2017.

    Source: the set's loader; the folders 0_real and 1_fake as OmniAID's evaluation lays it out.
    """
    inner = parts[1:] if parts[0] == "DRCT-2M" else parts
    if len(inner) < 3 or inner[1] not in ("train2017", "val2017"):
        return None
    split = SPLITS[inner[1]]
    if inner[0] == "MSCOCO" and len(inner) == 3:
        return Facts(REAL, "MSCOCO", "MSCOCO", "", split)
    if inner[0] not in DRCT_GENERATORS:
        return None
    label = NUMBERED.get(inner[2], AI) if len(inner) > 3 else AI
    subset = name_generator(inner[0])
    return Facts(label, "MSCOCO" if label == REAL else subset, subset, subset, split)


def read_chameleon(parts: tuple[str, ...], root: str) -> Facts | None:
    """Chameleon: [test/]0_real/x.jpg and [test/]1_fake/x.jpg; neither generators nor sources are named."""
    split, inner = _take_split(parts)
    if len(inner) != 2 or inner[0] not in NUMBERED:
        return None
    label = NUMBERED[inner[0]]
    name = "photographers" if label == REAL else "not named in Chameleon"
    return Facts(label, name, "Chameleon", "", split)


def read_cifake(parts: tuple[str, ...], root: str) -> Facts | None:
    """CIFAKE: test/REAL/x.jpg (CIFAR-10) and test/FAKE/x.jpg (Stable Diffusion 1.4), all 32 x 32 px."""
    labels = {"REAL": REAL, "FAKE": AI}
    split, inner = _take_split(parts)
    if not split or len(inner) != 2 or inner[0] not in labels:
        return None
    label = labels[inner[0]]
    return Facts(label, "CIFAR-10" if label == REAL else "Stable Diffusion 1.4", "CIFAKE", "", split)


def read_aigcdetect(parts: tuple[str, ...], root: str) -> Facts | None:
    """AIGCDetectBenchmark: progan/[cat/]1_fake/x.png; GAN sets are divided by class, others are not.

    Source: the benchmark's eval_config.py and loader.
    """
    if len(parts) not in (3, 4) or parts[-2] not in NUMBERED or parts[0] in SPLITS:
        return None
    label, subset = NUMBERED[parts[-2]], name_generator(parts[0])
    return Facts(label, "" if label == REAL else subset, "/".join(parts[:-2]), subset)


def read_plain(parts: tuple[str, ...], root: str) -> Facts | None:
    """Any tree with one folder for each class: real/, 0_real/, nature/ against fake/, 1_fake/, ai/, ...

    The generator is the folder below the class folder, else the one above it.

    Raises:
        EvaluationError: a path passes folders of both classes.
    """
    folders = [name.lower() for name in parts[:-1]]
    places = [place for place, name in enumerate(folders) if name in PLAIN_NAMES]
    if not places:
        return None
    if len({PLAIN_NAMES[folders[place]] for place in places}) > 1:
        raise EvaluationError(
            f"{printable('/'.join(parts))} lies in a folder for real and in one for AI pictures; rename one, "
            "or name the layout"
        )
    label = PLAIN_NAMES[folders[places[0]]]
    below = [name for name in parts[places[-1] + 1 : -1] if name.lower() not in SPLITS]
    above = [name for name in parts[: places[0]] if name.lower() not in SPLITS]
    split = next((SPLITS[name] for name in folders if name in SPLITS), "")
    name = (below[:1] or above[-1:] or [""])[0]
    generator = name_generator(name) if name else f"not named in {root}"
    source = "/".join((*above, *below[:1])) or root
    subset = name_generator(above[-1]) if above else ""
    return Facts(label, name if label == REAL else generator, source, subset, split)


LAYOUTS: dict[str, Layout] = {
    "genimage": Layout("GENERATOR/[imagenet_*/]train|val/nature|ai/*", read_genimage),
    "mirage-test": Layout("Human|Animal|Object|Scene|Anime/.../0_real|1_fake/.../*", read_mirage_test),
    "drct-2m": Layout("[DRCT-2M/]GENERATOR/train2017|val2017/*, MSCOCO/train2017|val2017/*", read_drct),
    "chameleon": Layout("[train|test/]0_real|1_fake/*", read_chameleon, hint="chameleon"),
    "cifake": Layout("train|test/REAL|FAKE/*", read_cifake, hint="cifake"),
    "aigcdetectbenchmark": Layout("GENERATOR/[CLASS/]0_real|1_fake/*", read_aigcdetect),
    "plain": Layout(".../real|0_real|nature|fake|1_fake|ai/.../*", read_plain),
}


def find_pictures(root: Path, layout: str = AUTO) -> Tree:
    """The pictures below `root`, in a stable order.

    Args:
        root: the folder.
        layout: a name of `LAYOUTS`; `auto` takes the one that gives most pictures a class, the more
            particular one of equals.

    Raises:
        EvaluationError: a folder cannot be read, holds no pictures, or fits no layout.
    """
    paths = list(_walk(root))
    if not paths:
        raise EvaluationError(f"{root} holds no picture files")
    names = [name for name in LAYOUTS if _may_be(name, root)] if layout == AUTO else [layout]
    best: Tree | None = None
    for name in names:
        tree = _read(paths, root, name)
        if best is None or len(tree.found) > len(best.found):
            best = tree
        if not tree.left_out:
            break
    if best is None or not best.found:
        shapes = "; ".join(
            f"{name}: {LAYOUTS[name].shape}" for name in (LAYOUTS if layout == AUTO else names)
        )
        raise EvaluationError(f"{root} has none of the layouts that are known ({shapes})")
    return best


def _may_be(name: str, root: Path) -> bool:
    hint = LAYOUTS[name].hint
    return not hint or any(hint in part.lower() for part in root.resolve().parts)


def _walk(root: Path) -> list[Path]:
    paths = []
    for item in find_inputs([root]):
        if item.problem is not None:
            raise EvaluationError(
                f"{printable(item.path)}: {item.problem}; an evaluation needs the whole folder"
            )
        paths.append(item.path.relative_to(root))
    return paths


def _read(paths: list[Path], root: Path, name: str) -> Tree:
    tree = Tree(name, [], [])
    for path in paths:
        facts = LAYOUTS[name].read(path.parts, printable(root.resolve().name))
        if facts is None:
            tree.left_out.append(path)
        else:
            tree.found.append(Found(path, Facts(*map(printable, facts))))
    return tree


def _find(parts: tuple[str, ...], names: dict[str, str]) -> int | None:
    """Where the first folder with one of the names stands."""
    return next((place for place, name in enumerate(parts[:-1]) if name in names), None)


def _take_split(parts: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The split that the first folder names, and the rest; an empty split when it names none."""
    split = SPLITS.get(parts[0], "")
    return split, parts[1:] if split else parts
