"""Deterministic pictures made with integer arithmetic only, so that every machine gets the same bytes."""

import base64
import io
import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# The only lossy input: its bytes are fixed, so that just the JPEG decoder can differ.
JPEG_96X64 = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYn"
    "KSopGR8tMC0oMCUoKSj/2wBDAQcHBwoIChMKChMoGhYaKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgo"
    "KCgoKCgoKCj/wAARCABAAGADASIAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUF"
    "BAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVW"
    "V1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi"
    "4+Tl5ufo6erx8vP09fb3+Pn6/8QAHwEAAwEBAQEBAQEBAQAAAAAAAAECAwQFBgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAEC"
    "AxEEBSExBhJBUQdhcRMiMoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVm"
    "Z2hpanN0dXZ3eHl6goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX2Nna4uPk5ebn6Onq"
    "8vP09fb3+Pn6/9oADAMBAAIRAxEAPwD5eSKpkiqykVTJFXVTiZwqldIqnSKrCRVOkVd1OJ0wqlZIqnSKrCRVOkVd1OJ0wqldIvam"
    "zNj5E69z6VYmbHyJ17n0qNIvavLzHM+W9Cg9er/RHfRl1ZXSKp0iqwkVTpFXjU4noQqlZIqnSKrCRVOkVd1OJ0wqnMJF7VMkVWUi"
    "qZIq6acT8yhVK6RV6dXAJFXf143ECsqfz/Q+44SnzKr/ANu/qFFFFfNn2IVgeKk3G19t/wDSt+sfxAm42/tu/pXThNa0f66HBmjt"
    "hZP0/NHPJFUyRVZSL2qZIq+jpxPloVSukXtU6RVYSKp0i9q7qcTqhVOYSKpkiqykXtU6Re1dNOJ+ZQqlZIq7CuWmOPkTr3PpXU18"
    "3nuJp1Zxpwd+W9/nb/I/QuC22qz/AMP/ALcFFFFeAfchWfqybjD7Z/pWhVe7TcU9s114L+PH+uh5edPlwU36fmjMSKpkiqykXtU6"
    "Re1fT04nxMKpWSKmytj5E69z6VZlOPkTr3PpUaRe1eXmOZ8t6FB69X+iO+jLqzLSKmzHHyJ17n0qzM2PkTr3PpUSRV0ZjmfLehQe"
    "vV/oj8yoy6srpFU6RVYSL2qdIq8enE74VSukVTJFVhIqnSL2rupxOqFUrpFU6Re1WEiqdIq7qcTphVKyRUkrbfkTr3PpViZsfInX"
    "ufSo0iry8xzPlvQoPXq/0R30ZdWVkiqdIqsJFU6RV41OJ3wqn//Z"
)


def gradient(width: int, height: int) -> NDArray[np.uint8]:
    """(H, W, 3) smooth ramps with a hard edge in the middle of each channel."""
    y, x = np.mgrid[0:height, 0:width]
    channels = (x * 255 // (width - 1), y * 255 // (height - 1), (x + y) * 4 % 256)
    return np.stack(channels, axis=-1).astype(np.uint8)


def noise(width: int, height: int) -> NDArray[np.uint8]:
    """(H, W, 3) values that look random, from a hash of the coordinates."""
    y, x, channel = np.mgrid[0:height, 0:width, 0:3].astype(np.uint64)
    mixed = (x * 73856093 ^ y * 19349663 ^ channel * 83492791) * 2654435761
    return (mixed >> np.uint64(13)).astype(np.uint8)


def mixture(width: int, height: int) -> NDArray[np.uint8]:
    """(H, W, 3) gradient with noise in its low bits, like a photograph's grain."""
    return gradient(width, height) ^ (noise(width, height) & 31)


def encoded(image: Image.Image, format_name: str, **options: object) -> bytes:
    """The bytes of `image` in a container."""
    buffer = io.BytesIO()
    image.save(buffer, format_name, **options)
    return buffer.getvalue()


def bomb_png(width: int, height: int) -> bytes:
    """A valid start of a PNG whose header claims `width` x `height` grey pixels; some 60 bytes long."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" * 100)),
        (b"IEND", b""),
    ]
    framed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def _rgba() -> Image.Image:
    colour = mixture(300, 200)
    alpha = gradient(300, 200)[:, :, :1]
    return Image.fromarray(np.concatenate([colour, alpha], axis=-1), "RGBA")


def _cmyk() -> Image.Image:
    black = noise(260, 240)[:, :, :1] & 63
    return Image.fromarray(np.concatenate([mixture(260, 240), black], axis=-1), "CMYK")


def _grey16() -> Image.Image:
    wide = gradient(240, 320)[:, :, 0].astype(np.uint16) * 256 + noise(240, 320)[:, :, 0]
    return Image.fromarray(wide)


def _palette() -> Image.Image:
    image = Image.fromarray(gradient(128, 256)[:, :, 1] // 16, "P")
    image.putpalette([value for index in range(16) for value in (index * 16, 255 - index * 16, 80)])
    return image


def lossless_pictures() -> dict[str, bytes]:
    """Name -> encoded bytes whose pixels do not depend on a decoder's rounding."""
    rgb = {
        "gradient-333x517": gradient(333, 517),
        "noise-224x224": noise(224, 224),
        "mixture-1000x750": mixture(1000, 750),
        "tiny-40x90": mixture(40, 90),
        "wide-900x130": mixture(900, 130),
    }
    return {
        **{f"{name}.png": encoded(Image.fromarray(pixels), "PNG") for name, pixels in rgb.items()},
        "rgba-300x200.png": encoded(_rgba(), "PNG"),
        "cmyk-260x240.tif": encoded(_cmyk(), "TIFF", compression="tiff_lzw"),
        "grey16-240x320.png": encoded(_grey16(), "PNG"),
        "palette-128x256.png": encoded(_palette(), "PNG", transparency=3),
        "turned-200x150.png": encoded(Image.fromarray(mixture(200, 150)), "PNG", exif=_turned()),
        "lossless-150x200.webp": encoded(Image.fromarray(mixture(150, 200)), "WEBP", lossless=True),
    }


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def jpeg_picture() -> bytes:
    """A JPEG of 96 x 64 px, 4:2:0."""
    return base64.b64decode(JPEG_96X64)
