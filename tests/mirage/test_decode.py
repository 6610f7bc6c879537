import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from mirage.decode import Limits, decode
from mirage.errors import UnreadableImage
from tests.mirage.conftest import encode, picture

LOSSLESS = [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True}), ("PPM", {}), ("QOI", {})]
LOSSY = [("JPEG", {"quality": 95}), ("AVIF", {"quality": 90}), ("JPEG2000", {}), ("WEBP", {"quality": 95})]


def difference(left: Image.Image, right: Image.Image) -> float:
    return float(np.abs(np.asarray(left, np.float64) - np.asarray(right, np.float64)).mean())


@pytest.mark.parametrize(("codec", "options"), LOSSLESS)
def test_lossless_formats_give_the_same_pixels(codec, options):
    decoded = decode(encode(picture(1), codec, **options))
    assert (decoded.format, decoded.width, decoded.height, decoded.warnings) == (codec, 96, 80, ())
    assert np.array_equal(decoded.image, picture(1))


@pytest.mark.parametrize(("codec", "options"), LOSSY)
def test_lossy_formats_give_nearly_the_same_pixels(codec, options):
    assert difference(decode(encode(picture(1), codec, **options)).image, picture(1)) < 4


def test_heic_is_decoded():
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    pillow_heif.from_pillow(picture(1)).save(buffer, quality=90)
    decoded = decode(buffer.getvalue())
    assert decoded.format == "HEIC"
    assert difference(decoded.image, picture(1)) < 6


def test_decoding_heic_registers_nothing_in_pillow(tmp_path):
    """In a process of its own: other libraries of this one (imageio) do register the format."""
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(picture(1)).save(tmp_path / "one.heic")
    program = (
        "import sys; from pathlib import Path; from PIL import Image; from mirage.decode import decode; "
        "decode(Path(sys.argv[1]).read_bytes()); sys.exit('HEIF' in Image.OPEN)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "one.heic")], check=True, timeout=60)


def test_heic_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UnreadableImage, match="pip install pillow-heif"):
        decode(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(64))


def test_cmyk_keeps_its_colours():
    red = Image.new("RGB", (64, 64), (220, 30, 40))
    decoded = decode(encode(red.convert("CMYK"), "JPEG", quality=95)).image
    assert difference(decoded, red) < 4


def test_transparency_lies_over_white():
    clear = Image.new("RGBA", (64, 64), (200, 0, 0, 0))
    clear.paste((0, 0, 200, 255), (0, 0, 32, 64))
    for image in (clear, clear.quantize(8)):
        decoded = decode(encode(image)).image
        assert decoded.getpixel((60, 30)) == (255, 255, 255)
        assert decoded.getpixel((10, 30)) == (0, 0, 200)
    half = decode(encode(Image.new("LA", (64, 64), (0, 128)))).image
    assert half.getpixel((5, 5)) == (127, 127, 127)


def test_palette_with_a_transparent_index_lies_over_white():
    image = Image.new("P", (64, 64), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (0, 0, 32, 64))
    decoded = decode(encode(image, "GIF", transparency=0)).image
    assert decoded.getpixel((50, 10)) == (255, 255, 255)
    assert decoded.getpixel((10, 10)) == (200, 100, 50)


@pytest.mark.parametrize("codec", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_not_cut(codec):
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    decoded = np.asarray(decode(encode(Image.fromarray(ramp), codec)).image)[..., 0]
    assert np.abs(decoded - ramp / 257).max() <= 1


def test_float_grey_is_scaled_and_not_a_number_is_black():
    values = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    values[0, 0] = np.nan
    decoded = np.asarray(decode(encode(Image.fromarray(values), "TIFF")).image)[..., 0]
    assert decoded[0, 0] == 0
    assert decoded[-1, -1] == 255


@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_comes_out_upright(codec, orientation):
    """Stores the picture turned the opposite way, tagged, as cameras do."""
    upright = Image.new("RGB", (96, 64), "white")
    upright.paste((255, 0, 0), (0, 0, 48, 32))  # red top left
    upright.paste((0, 0, 255), (48, 32, 96, 64))  # blue bottom right
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose values
    stored = upright.transpose(Image.Transpose(undo[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if codec == "WEBP" else {}
    decoded = decode(encode(stored, codec, exif=exif, **options))
    assert (decoded.width, decoded.height) == (96, 64)
    assert difference(decoded.image, upright) < 3


def test_another_profile_is_converted_and_srgb_is_left_alone():
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert np.array_equal(decode(encode(picture(2), icc_profile=srgb)).image, picture(2))
    # The same profile under another name and with red and blue primaries exchanged.
    renamed = srgb.replace("sRGB".encode("utf-16-be"), "test".encode("utf-16-be"))
    exchanged = renamed.replace(b"rXYZ", b"swap").replace(b"bXYZ", b"rXYZ").replace(b"swap", b"bXYZ")
    for mode in ("RGB", "RGBA"):
        red = Image.new(mode, (64, 64), (255, 0, 0))
        assert decode(encode(red, icc_profile=exchanged)).image.getpixel((5, 5)) == (0, 0, 255)


def test_a_broken_profile_is_a_warning():
    broken = decode(encode(picture(2), icc_profile=b"not a profile"))
    assert np.array_equal(broken.image, picture(2))
    assert broken.warnings == ("the colour profile cannot be used and was ignored",)


def test_the_first_frame_of_an_animation_is_used_and_said():
    frames = [picture(seed) for seed in range(3)]
    decoded = decode(encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True))
    assert np.array_equal(decoded.image, frames[0])
    assert decoded.warnings == ("the file holds several frames or pages; only the first is used",)


@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP", "GIF", "AVIF", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_a_truncated_file_is_an_error(codec, share):
    data = encode(picture(3, 300, 200), codec)
    with pytest.raises(UnreadableImage):
        decode(data[: int(len(data) * share)])


@pytest.mark.parametrize("codec", ["JPEG", "PNG"])
def test_bytes_after_the_end_are_a_warning(codec):
    data = encode(picture(3), codec)
    appended = decode(data + b"tEXtparameter")
    assert appended.warnings == (f"13 bytes after the end of the {codec} were ignored",)
    assert np.array_equal(appended.image, decode(data).image)


def test_a_thumbnail_inside_exif_is_not_taken_for_the_end():
    thumbnail = encode(picture(5, 64, 64), "JPEG")
    exif = b"Exif\x00\x00" + thumbnail
    assert decode(encode(picture(3), "JPEG", exif=exif)).warnings == ()


def png_header(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def test_a_bomb_is_refused_from_its_header():
    with pytest.raises(
        UnreadableImage, match=r"claims 60000 x 60000 = 3,600,000,000 pixels; at most 100,000,000"
    ):
        decode(png_header(60000, 60000))


def test_the_pixel_cap_is_ours_not_pillows():
    with pytest.raises(UnreadableImage, match="at most 1,000 are decoded"):
        decode(encode(picture(1)), Limits(max_pixels=1000))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", r"^the file is empty \(0 bytes\)$"),
        (b"hello, world", "not a picture of a supported format"),
        (b"%PDF-1.7 and so on", "not a picture of a supported format"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (b"\xff\xd8\xff\xe0", "damaged|cut short"),
        (encode(Image.new("RGB", (1, 1))), r"1 x 1 px; its shorter side must be at least 32 px"),
    ],
)
def test_what_is_no_usable_picture_gets_one_clear_sentence(data, sentence):
    with pytest.raises(UnreadableImage, match=sentence) as caught:
        decode(data)
    assert "\n" not in str(caught.value)


def test_too_many_bytes_are_refused():
    with pytest.raises(UnreadableImage, match="at most 100 are read"):
        decode(encode(picture(1)), Limits(max_bytes=100))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_damage_is_an_unreadable_image_and_nothing_else():
    """Flips bytes all over files of several formats: the decoder answers or raises its own error."""
    random = np.random.default_rng(0)
    for codec in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "AVIF", "JPEG2000", "BMP", "ICO"):
        original = np.frombuffer(encode(picture(4, 64, 64), codec), np.uint8)
        for _ in range(30):
            damaged = original.copy()
            places = random.integers(0, min(len(damaged), 400), 6)
            damaged[places] = random.integers(0, 256, 6)
            try:
                assert decode(damaged.tobytes(), Limits(max_pixels=10**6)).image.mode == "RGB"
            except UnreadableImage:
                continue
