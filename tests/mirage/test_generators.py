import sys
from importlib.util import find_spec

import numpy as np
import pytest

from mirage.errors import BuildError, MirageError
from mirage.generators import FACE_INSTALL, GENERATORS, _face_networks, _free_noise, generate

needs_faces = pytest.mark.skipif(
    find_spec("random_face") is None or find_spec("openvino") is None,
    reason=f"the generator's package is not installed: {FACE_INSTALL}",
)


@pytest.fixture(scope="module")
def faces():
    return list(generate("mobile-stylegan", 2, seed=3))


@pytest.mark.slow
@needs_faces
def test_faces_are_rgb_of_the_networks_size(faces):
    assert [key for key, _ in faces] == ["mobile-stylegan-3-000000", "mobile-stylegan-3-000001"]
    assert all(face.mode == "RGB" and face.size == (1024, 1024) for _, face in faces)


@pytest.mark.slow
@needs_faces
def test_faces_are_pictures_and_not_noise(faces):
    """A wrong scale or channel order would flatten the range or break the smoothness of skin."""
    for _, face in faces:
        pixels = np.asarray(face, dtype=np.float32)
        assert pixels.std() > 20
        assert np.abs(np.diff(pixels, axis=1)).mean() < 12
    centres = np.stack([np.asarray(face)[400:700, 400:620] for _, face in faces])
    red, _, blue = centres.mean(axis=(0, 1, 2))
    assert red > blue, "skin is redder than blue in RGB order"


@pytest.mark.slow
@needs_faces
def test_faces_of_one_seed_differ(faces):
    first, second = (np.asarray(face, dtype=np.int16) for _, face in faces)
    assert np.abs(first - second).mean() > 10


@pytest.mark.slow
@needs_faces
def test_same_seed_same_picture_whatever_the_count(faces):
    (key, face), *rest = generate("mobile-stylegan", 1, seed=3)
    assert not rest
    assert key == faces[0][0]
    assert face.tobytes() == faces[0][1].tobytes()


@pytest.mark.slow
@needs_faces
def test_start_leads_to_the_same_picture(faces):
    [(key, face)] = generate("mobile-stylegan", 1, seed=3, start=1)
    assert key == faces[1][0]
    assert face.tobytes() == faces[1][1].tobytes()


@pytest.mark.slow
@needs_faces
def test_no_noise_pattern_stays_baked_in():
    """The packaged network adds one fixed pattern to every face; all 15 layers must take a fresh one."""
    import openvino

    network = openvino.Core().read_model(_face_networks() / "SynthesisNetwork.xml")
    scales = _free_noise(network)
    assert {port.any_name for port in network.inputs} == {"style", *scales}
    sides = sorted(side for side, _ in scales.values())
    assert sides == [4] + [side for side in (8, 16, 32, 64, 128, 256, 512) for _ in range(2)]
    assert max(scales.values(), key=lambda row: row[1]) == (128, pytest.approx(0.2512, abs=1e-3))


@pytest.mark.slow
@needs_faces
def test_smaller_side_is_the_same_face_reduced(faces):
    (_, small), *_ = generate("mobile-stylegan", 1, seed=3, side_px=512)
    assert small.size == (512, 512)
    halves = np.asarray(faces[0][1].reduce(2), dtype=np.int16)
    assert np.abs(np.asarray(small, dtype=np.int16) - halves).mean() < 3


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(
        BuildError, match=r"'stable-confusion' does not exist; choose one of: .*mobile-stylegan"
    ):
        generate("stable-confusion", 1, seed=0)


@pytest.mark.parametrize("name", sorted(GENERATORS))
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"count": -1}, "count of a generator is -1; it must be 0 or more"),
        ({"seed": -5}, "seed of a generator is -5; it must be 0 or more"),
        ({"start": -2}, "start of a generator is -2; it must be 0 or more"),
        ({"threads": 0}, "threads of a generator is 0; it must be 1 or more"),
        ({"side_px": 2048}, "side_px of a generator is 2048; it must be 64 to 1024"),
    ],
)
def test_argument_out_of_range_is_refused_before_anything_loads(name, arguments, sentence):
    with pytest.raises(BuildError, match=sentence):
        generate(name, **{"count": 1, "seed": 0, **arguments})


@pytest.mark.parametrize("package", ["random_face", "openvino"])
def test_missing_package_says_how_to_install(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MirageError, match="is not installed; install it with: pip install 'omniaid"
    ) as caught:
        generate("mobile-stylegan", 1, seed=0)
    assert FACE_INSTALL in str(caught.value)
