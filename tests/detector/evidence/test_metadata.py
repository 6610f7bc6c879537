import io

import pytest
from PIL import Image

from detector.evidence import EvidenceOptions, examine
from detector.evidence.exif import decode_comment
from detector.evidence.ifd import read_directories
from detector.evidence.source_types import CLAIMS, short_name
from detector.evidence.xmp import read_packet
from tests.detector.evidence.files import (
    A1111,
    GRAPH,
    TRAINED,
    WORKFLOW,
    chunk,
    encode,
    exif_block,
    jpeg_with,
    png_with,
    structured,
    text_chunk,
    trained_xmp,
    with_xmp,
    xmp,
)


def rows(data, kind, **options):
    return [row for row in examine(data, EvidenceOptions(**options)).findings if row.kind == kind]


def test_a_file_without_metadata_says_nothing():
    evidence = examine(encode())
    assert (evidence.findings, evidence.warnings, evidence.credential) == ((), (), None)
    assert set(evidence.checks.values()) <= {"done"}


@pytest.mark.parametrize("codec", ["JPEG", "WEBP", "AVIF", "GIF"])
def test_a_stated_source_type_is_found_with_its_place(codec):
    data = with_xmp(codec)
    (row,) = rows(data, "source_type")
    assert (row.claim, row.confidence) == ("made_by_ai", "stated")
    assert b"trainedAlgorithmicMedia" in data[row.place.offset : row.place.offset + row.place.length]


def test_a_source_type_as_element_and_as_resource():
    element = f"<Iptc4xmpExt:DigitalSourceType>{TRAINED}</Iptc4xmpExt:DigitalSourceType>"
    resource = f'<Iptc4xmpExt:DigitalSourceType rdf:resource="{TRAINED}"/>'
    for inner in (element, resource):
        assert read_packet(xmp(inner)).values["Iptc4xmpExt:DigitalSourceType"] == [TRAINED]


def test_siblings_keep_their_own_meaning():
    assert CLAIMS[short_name(TRAINED)][0] == "made_by_ai"
    assert CLAIMS["compositeWithTrainedAlgorithmicMedia"][0] == "edited_with_ai"
    assert CLAIMS["digitalCapture"][0] == "captured"
    assert short_name("https://example.org/trainedAlgorithmicMedia") is None


@pytest.mark.parametrize("harm", ['<!DOCTYPE a [<!ENTITY b "c">]>', "<a>" * 60, "<unclosed"])
def test_hostile_xmp_is_a_warning(harm):
    data = jpeg_with(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + harm.encode())
    evidence = examine(data)
    assert evidence.findings == ()
    assert "APP1 XMP cannot be read" in evidence.warnings[0].text


@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("codec", ["JPEG", "WEBP", "PNG", "AVIF"])
def test_parameters_in_a_user_comment(codec, order):
    (row,) = rows(encode(codec=codec, exif=exif_block(comment=A1111, order=order)), "generation")
    assert row.details["tool"] == "AUTOMATIC1111"
    assert "red cat" in row.details["prompt"]


def test_a_comment_in_the_other_byte_order_is_still_read():
    assert decode_comment(b"UNICODE\0" + "Steps: 20".encode("utf-16-le"), "big") == "Steps: 20"
    assert decode_comment(b"ASCII\0\0\0Steps: 20", "big") == "Steps: 20"


def test_a_comfyui_graph_in_webp_exif():
    data = encode(codec="WEBP", exif=exif_block({0x010F: f"workflow:{WORKFLOW}", 0x0110: f"prompt:{GRAPH}"}))
    evidence = examine(data)
    assert [row.details["tool"] for row in evidence.findings if row.kind == "generation"] == ["ComfyUI"]
    assert not [row for row in evidence.findings if row.kind == "camera"]


TEXTS = {
    "AUTOMATIC1111": {"parameters": A1111},
    "ComfyUI": {"prompt": GRAPH, "workflow": WORKFLOW},
    "InvokeAI": {"invokeai_metadata": '{"positive_prompt": "a cat", "scheduler": "euler"}'},
    "NovelAI": {
        "Software": "NovelAI",
        "Source": "Toy ABC",
        "Description": "a cat",
        "Comment": '{"sampler": "k", "uc": "b"}',
    },
    "Fooocus": {
        "parameters": '{"base_model": "m", "base_model_hash": "h", "sampler": "s", "prompt": "a cat"}'
    },
    "SwarmUI": {"parameters": '{"sui_image_params": {"prompt": "a cat", "model": "m"}}'},
    "Easy Diffusion": {"prompt": "a cat", "use_stable_diffusion_model": "toy", "seed": "3"},
    "Midjourney": {"Description": "a cat --v 6 Job ID: 01234567-89ab-cdef-0123-456789abcdef"},
}


@pytest.mark.parametrize(("tool", "texts"), TEXTS.items())
def test_each_generator_is_recognised(tool, texts):
    (row,) = rows(png_with(*[text_chunk(key, value) for key, value in texts.items()]), "generation")
    assert (row.details["tool"], row.claim, row.confidence) == (tool, "made_by_ai", "stated")
    assert row.details["prompt"] or tool == "ComfyUI"


def test_draw_things_in_xmp():
    comment = (
        "{&quot;c&quot;: &quot;a cat&quot;, &quot;sampler&quot;: &quot;Euler&quot;, &quot;seed&quot;: 1}"
    )
    listed = f'<rdf:Alt><rdf:li xml:lang="x-default">{comment}</rdf:li></rdf:Alt>'
    inner = f"<exif:UserComment>{listed}</exif:UserComment>"
    (row,) = rows(jpeg_with(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(inner)), "generation")
    assert (row.details["tool"], row.details["prompt"]) == ("Draw Things", "a cat")


@pytest.mark.parametrize(
    "texts",
    [
        {"parameters": "hello"},
        {"prompt": "a cat"},
        {"workflow": '{"steps": ["cut", "sew"]}'},
        {"Description": "a job with an ID: none"},
        {"Comment": "made with stable diffusion"},
    ],
)
def test_words_alone_are_no_parameters(texts):
    assert examine(png_with(*[text_chunk(key, value) for key, value in texts.items()])).findings == ()


def test_a_redacted_prompt_is_a_length_and_a_hash():
    data = png_with(text_chunk("parameters", A1111))
    (row,) = rows(data, "generation", redact_prompts=True)
    assert set(row.details["prompt"]) == {"length", "sha256"}
    assert "red cat" not in examine(data, EvidenceOptions(redact_prompts=True)).model_dump_json()


def test_made_with_tags_and_editors_differ():
    google = rows(
        jpeg_with(
            0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(attributes='photoshop:Credit="Made with Google AI"')
        ),
        "made_with",
    )
    assert google[0].claim == "made_by_ai"
    (editor,) = rows(encode(exif=exif_block({0x0131: "Adobe Photoshop 25.0"})), "software")
    assert (editor.claim, editor.confidence) == ("edited", "stated")


def test_camera_data_need_an_exposure():
    (full,) = rows(encode(exif=exif_block(camera=True)), "camera")
    assert (full.claim, full.confidence) == ("captured", "stated")
    (bare,) = rows(encode(exif=exif_block({0x010F: "Toy", 0x0110: "Toy 1"})), "camera")
    assert (bare.claim, bare.confidence) == ("none", "hint")


def test_camera_beside_parameters_is_a_conflict():
    evidence = examine(encode(exif=exif_block(camera=True, comment=A1111)))
    assert any(row.kind == "conflict" and "carried over" in row.text for row in evidence.warnings)


def test_a_preview_of_another_picture_is_noticed():
    def with_preview(preview):
        thumbnail = encode(preview.resize((48, 32)))
        block = bytearray(exif_block({0x010F: "Toy"}).removeprefix(b"Exif\0\0"))
        link = int.from_bytes(block[8:10], "big") * 12 + 10
        block[link : link + 4] = len(block).to_bytes(4, "big")
        start = len(block) + 2 + 24 + 4
        block += (
            b"\0\2"
            + b"".join(
                tag.to_bytes(2, "big") + b"\0\4\0\0\0\1" + value.to_bytes(4, "big")
                for tag, value in ((0x0201, start), (0x0202, len(thumbnail)))
            )
            + bytes(4)
        )
        return encode(exif=b"Exif\0\0" + bytes(block) + thumbnail)

    (same,) = rows(with_preview(structured()), "thumbnail")
    (turned,) = rows(with_preview(structured().rotate(180)), "thumbnail")
    (other,) = rows(with_preview(structured(seed=9)), "thumbnail")
    assert not same.details["differs"]
    assert not turned.details["differs"]
    assert other.details["differs"]
    assert (other.claim, other.confidence) == ("edited", "hint")


def test_directories_that_point_at_each_other_end():
    looped = b"II*\0\x08\0\0\0" + b"\0\0" + b"\x08\0\0\0"
    assert read_directories(looped).problems == ["directory 1 points to one that was already read"]


def test_a_png_keeps_exif_in_raw_profiles():
    block = exif_block(comment=A1111)
    profile = f"\nexif\n{len(block):8d}\n{block.hex()}\n".encode()
    data = png_with(chunk(b"tEXt", b"Raw profile type exif\0" + profile))
    assert rows(data, "generation")[0].details["tool"] == "AUTOMATIC1111"


def test_the_pixels_are_looked_at_only_when_asked():
    evidence = examine(encode(), EvidenceOptions(pixels=False))
    assert evidence.checks["watermarks"] == "it was not asked for"
    large = examine(encode(), EvidenceOptions(max_pixels=100))
    assert "more than 100 pixels" in large.checks["watermarks"]


def test_a_large_file_is_not_read():
    evidence = examine(encode(), EvidenceOptions(max_bytes=10))
    assert evidence.checks == {"container": "the file has more than 10 bytes"}


def test_evidence_survives_json():
    evidence = examine(encode(xmp=trained_xmp(), exif=exif_block(camera=True)))
    assert type(evidence).model_validate_json(evidence.model_dump_json()) == evidence


def test_pillow_agrees_on_what_was_written():
    data = encode(exif=exif_block(comment=A1111))
    stored = Image.open(io.BytesIO(data)).getexif().get_ifd(0x8769)[0x9286]
    assert decode_comment(stored, "big") == A1111
