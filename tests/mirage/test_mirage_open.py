"""The recipe `mirage-open` keeps its promises; nothing here needs the clones it is cut from."""

import csv
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import get_args

import pytest

from mirage.declarations import Domain
from mirage.facts import facts_of, group_of, is_wanted
from mirage.recipe import Recipe, read_recipe
from mirage.sources import Candidate

RECIPES = Path(__file__).parents[2] / "recipes"
DEVTEST_REPOS = {
    *("EnragedAntelope/Artists-SD35L", "Extile1/stable-diffusion", "Tyler-Hilbert/PromptSearch"),
    *("jamez-bondos/awesome-gpt4o-images", "leejet/stable-diffusion.cpp", "planetoftheweb/demo-test-02"),
    *("wowmarcomei/awesome-gpt-images", "Li-Chongyi/Zero-DCE", "MikeKovarik/exifr", "OpenTTD/website"),
    *("U-MIN/artwork", "alexisVallet/cc-anime-images", "anirudh04/akphotography.github.io"),
    *("ashleymcnamara/gophers", "bpatrik/pigallery2", "danmilon/71th-parallel", "datitran/raccoon_dataset"),
    *("denilsonsaavedra/flightstudio-Old-Multi", "idangerous/website-templates"),
    *("kancelott/mister-pictures2", "recurser/exif-orientation-examples", "renpy/renpy"),
    *("timorleste/photography", "zzzDavid/ICDAR-2019-SROIE"),
}
SAME_SCENES = [
    {"BIDS/BSDS500", "jbhuang0604/SelfExSR", "majedelhelou/denoising_datasets"},
    {
        "EvoLinkAI/awesome-gpt-image-2-prompts",
        "freestylefly/awesome-gpt-image-2",
        "wanghao137/gpt-image",
    },
    {"jamez-bondos/awesome-gpt4o-images", "wowmarcomei/awesome-gpt-images"},
]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return read_recipe(RECIPES / "mirage-open.yaml")


@pytest.fixture(scope="module")
def table() -> list[dict[str, str]]:
    with (RECIPES / "mirage-open.tsv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def named(recipe, name):
    return next(source for source in recipe.sources if source.name == name)


def facts_at(recipe, name, path):
    return facts_of(named(recipe, name), Candidate(path), RECIPES)


def reaches(source, path) -> bool:
    chosen = bool(re.search(source.select, path))
    return chosen and is_wanted(source, Candidate(path))


def listed(source, table):
    """The table's rows that a source with a paths file is made of."""
    return [row for row in table if (row["repo"], row["generator"]) == (source.repo, source.paths_value)]


def test_every_source_says_its_terms_its_traps_its_group_and_its_split(recipe):
    assert len(recipe.sources) >= 110
    for source in recipe.sources:
        assert source.licence and source.note and group_of(source), source.name
        assert source.split, source.name


def test_devtest_repositories_are_never_trained_on_or_calibrated_on(recipe):
    repos = defaultdict(set)
    for source in recipe.sources:
        repos[source.split].add(getattr(source, "repo", source.name))
    assert repos["devtest"] == DEVTEST_REPOS
    assert not DEVTEST_REPOS & (repos["train"] | repos["calibration"])
    assert not repos["train"] & repos["calibration"]


def test_no_group_and_no_repository_straddles_splits(recipe):
    splits = defaultdict(set)
    for source in recipe.sources:
        splits[group_of(source)].add(source.split)
        splits[getattr(source, "repo", source.name)].add(source.split)
    assert {name: found for name, found in splits.items() if len(found) > 1} == {}


@pytest.mark.parametrize("repos", SAME_SCENES, ids=lambda repos: min(repos))
def test_repositories_that_show_the_same_pictures_share_a_group(recipe, repos):
    groups = {group_of(source) for source in recipe.sources if getattr(source, "repo", "") in repos}
    assert len(groups) == 1


def test_every_generator_of_ai_pictures_is_catalogued(recipe, table):
    used = {source.generator for source in recipe.sources if source.label == "ai" and source.generator}
    used |= {source.rules.reconstruct.method for source in recipe.sources if source.rules.reconstruct}
    used |= {row["model"] for row in table if row["model"]}
    assert used == set(recipe.generators)


def test_the_table_lists_what_the_recipe_asks_for_and_nothing_else(recipe, table):
    asked = {
        (source.repo, source.paths_value) for source in recipe.sources if getattr(source, "paths_file", None)
    }
    assert asked == {(row["repo"], row["generator"]) for row in table}
    assert {row["domain"] for row in table if row["domain"]} <= set(get_args(Domain)) - {"artifact"}
    assert max(Counter((row["repo"], row["path"]) for row in table).values()) == 1


def test_a_path_with_facts_stands_in_one_repository_only(table):
    """Facts are joined by path alone, so two repositories must not share one."""
    repos = defaultdict(set)
    for row in table:
        if row["domain"] or row["model"]:
            repos[row["path"]].add(row["repo"])
    assert {path for path, found in repos.items() if len(found) > 1} == set()


def test_every_domain_that_a_path_can_tell_is_a_domain(recipe):
    for source in recipe.sources:
        for found, domain in source.facts.values.get("domain", {}).items():
            assert domain in get_args(Domain), (source.name, found)


def test_caps_keep_any_generator_and_any_real_source_from_dominating(recipe, table):
    at_most = Counter()
    for source in recipe.sources:
        if source.rules.reconstruct:
            continue
        count = source.count if source.kind == "generator" else source.cap
        if count is None and getattr(source, "paths_file", None):
            count = len(listed(source, table))
        if source.label == "real":
            assert count is None or count <= 700, source.name
        at_most[source.generator if source.label == "ai" else None] += count or 0
    assert max(count for generator, count in at_most.items() if generator) <= 1500


def test_posters_are_a_minority_of_the_pictures_of_large_generators(recipe, table):
    pictures = posters = 0
    for source in recipe.sources:
        if source.label == "ai" and getattr(source, "paths_file", None) == Path("mirage-open.tsv"):
            count = min(source.cap or 10**6, len(listed(source, table)))
            is_poster = source.paths_value.endswith("posters")
            posters, pictures = posters + count * is_poster, pictures + count * (not is_poster)
    assert 0.1 < posters / (posters + pictures) < 0.25


def test_the_shoe_set_is_equal_on_both_sides(recipe):
    assert named(recipe, "shoes-ai").cap == named(recipe, "shoes-real").cap
    assert named(recipe, "shoes-ai").split == named(recipe, "shoes-real").split == "train"


def test_calibration_resembles_devtest_in_kind(recipe):
    train = {s.repo for s in recipe.sources if s.kind == "git" and s.split == "train"}
    calibration = [s for s in recipe.sources if s.split == "calibration"]
    share = len({s.repo for s in calibration}) / (len(train) + len({s.repo for s in calibration}))
    assert 0.2 <= share <= 0.35
    kinds = {s.generator for s in calibration if s.label == "real"}
    assert {"camera", "camera-portfolio", "camera-stock", "drawn", "drawn-digital", "drawn-game"} <= kinds
    assert sum(s.label == "ai" for s in calibration) >= 4


@pytest.mark.parametrize(
    ("name", "path"),
    [
        # CompVis' sampling script replaces what its filter dislikes with one photograph of a singer.
        ("extile1", "outputs/txt2img-samples/samples/00033.png"),
        ("openttd", "_screenshots/0.4.7-africa_thumb.png"),
        ("planetoftheweb", "images/characters/airobot_tn.jpg"),
        ("jamez-gpt-image-1", "gpt-image-1/examples/ad-olive-oil-input1.png"),
        ("jamez-gpt-image-1", "gpt-image-1/examples/floorplan-input.png"),
        ("awesome-gpt-images", "public/examples/avatar_sample.png"),
        ("pigallery2", "demo/images/4MinsAroundTheWorld-01.jpg"),
        ("wyrde-comfyui-workflows", "why-oh-why/nulti-sample-latent-fixing-x40-v1.2.png"),
        ("awesome-pretrained-stylegan2", "content/CIFAR 10/samples.jpg"),
        ("awesome-pretrained-stylegan2", "content/cat/mixing.jpg"),
    ],
)
def test_known_traps_are_left_out(recipe, name, path):
    assert not reaches(named(recipe, name), path)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("extile1", "outputs/txt2img-samples/samples/00034.png"),
        ("openttd", "_screenshots/0.4.7-africa.png"),
        ("planetoftheweb", "images/characters/airobot.jpg"),
        ("jamez-gpt-image-1", "gpt-image-1/examples/ad-olive-oil.png"),
        ("awesome-pretrained-stylegan2", "content/cat/samples.jpg"),
    ],
)
def test_what_stands_beside_the_traps_stays(recipe, name, path):
    assert reaches(named(recipe, name), path)


def test_the_photograph_among_the_generated_animals_is_not_listed(table):
    paths = {row["path"] for row in table if row["repo"] == "bento170502/stable-diffusion"}
    assert "outputs/txt2img-samples/samples/00203.png" in paths
    assert "outputs/txt2img-samples/samples/00204.png" not in paths


@pytest.mark.parametrize(
    ("name", "path", "domain"),
    [
        ("imagenet-sample-images", "n01440764_tench.JPEG", "animal"),
        ("imagenet-sample-images", "n02655020_puffer.JPEG", "animal"),
        ("imagenet-sample-images", "n02666196_abacus.JPEG", "object"),
        ("imagenet-sample-images", "n09193705_alp.JPEG", "scene"),
        ("imagenet-sample-images", "n09835506_ballplayer.JPEG", "human"),
        ("imagenet-sample-images", "n15075141_toilet_tissue.JPEG", "object"),
        ("pacs-photo", "PACS/photo/giraffe/084_0001.jpg", "animal"),
        ("magento2-sample-data", "pub/media/catalog/product/w/s/ws01-black_main.jpg", "human"),
        ("awesome-pretrained-stylegan2", "content/church/samples.jpg", "scene"),
        ("easydiffusion", "ui/media/modifier-thumbnails/pen/ink/landscape-0.jpg", "scene"),
        ("stable-diffusion-cpp", "assets/lens/example.png", "anime"),
        ("bsds500", "BSDS500/data/images/test/100007.jpg", "mixed"),
    ],
)
def test_domains_come_from_the_evidence_in_paths(recipe, name, path, domain):
    assert facts_at(recipe, name, path).domain == domain


def test_prompt_and_model_come_with_the_picture(recipe):
    panda = facts_at(recipe, "imagen-midj", "output/renders/panda-riding-bicycle-14507045/midj-1.png")
    assert (panda.prompt, panda.domain) == ("Photograph of a panda riding a bicycle", "animal")
    artist = facts_at(recipe, "cheatsheet-photography", "img/Slim-Aarons.webp")
    assert (artist.prompt, artist.generator) == ("style of Slim Aarons", "Deliberate 2.0")
    cat = facts_at(recipe, "stable-diffusion-cpp", "assets/qwen/qwen_image_edit_2509.png")
    assert cat.generator == "Qwen-Image-Edit-2509"


def test_three_networks_rebuild_real_train_pictures(recipe):
    twins = [source for source in recipe.sources if source.rules.reconstruct]
    assert {twin.rules.reconstruct.method for twin in twins} == {
        "realesrgan-x4",
        "realesr-video-x2",
        "realesr-video-x4",
    }
    assert {(twin.label, twin.split, twin.domain) for twin in twins} == {("real", "train", "artifact")}
    assert len({twin.repo for twin in twins}) >= 8


def test_generated_faces_keep_clear_of_the_seed_reserved_for_evaluation(recipe):
    faces = [source for source in recipe.sources if source.kind == "generator"]
    assert sum(source.count for source in faces) >= 300
    assert 10000 not in {source.seed for source in faces}
