"""Images by their content, and what is too large for a model."""

from __future__ import annotations

import base64
import io
import struct
import sys
import time
from pathlib import Path

import pytest

from orchestrator.core import history as core_images
from orchestrator.core.history import check_image_url
from orchestrator.instructions.project import ProjectDocs
from orchestrator.instructions.skills import Guide, Skills
from orchestrator.runtime.machine_files import Files
from orchestrator.tools import images
from orchestrator.tools.images import data_url, dimensions, fitting_data_url

PNG = b"\x89PNG\r\n\x1a\n"


def png(width: int, height: int, more: int = 0) -> bytes:
    return PNG + b"\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x02\0\0\0" + b"\0" * more


def encoded(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("png", png(1, 1)),
        ("jpeg", b"\xff\xd8\xff\xe0"),
        ("gif", b"GIF89a\x01\0\x01\0"),
        ("webp", b"RIFF\0\0\0\0WEBPVP8 "),
    ],
)
def test_content_says_what_an_image_is_and_not_its_name(kind: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    assert data_url(tmp_path / "x.txt") == encoded(content, kind)


def test_text_with_the_name_of_an_image_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("hello")
    for read in (data_url, fitting_data_url):
        with pytest.raises(ValueError, match="it is no PNG, JPEG, GIF or WebP image"):
            read(tmp_path / "x.png")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
def test_size_is_read_from_the_header(form: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    pillow.new("RGB", (321, 45)).save(made, form)
    assert dimensions(form.lower(), made.getvalue()) == (321, 45)


@pytest.mark.parametrize("options", [{"lossless": True}, {"exif": b"Exif\0\0"}])
def test_size_is_read_from_every_form_of_webp(options: dict[str, object]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    pillow.new("RGB", (321, 45)).save(made, "WEBP", **options)
    assert dimensions("webp", made.getvalue()) == (321, 45)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("content", [b"", b"\xff\xd8" + b"\xff" * (1 << 20), b"\xff\xd8\xff\xe0\0\0" * 9])
def test_damaged_header_is_an_error_at_once(kind: str, content: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="its header is damaged"):
        dimensions(kind, content)
    assert time.process_time() - began < 0.5


def test_image_that_fits_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(png(2048, 1))
    assert fitting_data_url(tmp_path / "x") == encoded(png(2048, 1))


def test_large_image_is_scaled(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGBA", (4096, 1024), (255, 0, 0, 0)).save(tmp_path / "x", "PNG")
    url = fitting_data_url(tmp_path / "x")
    head, _, text = url.partition(",")
    scaled = pillow.open(io.BytesIO(base64.b64decode(text)))
    assert (head, scaled.size) == ("data:image/jpeg;base64", (2048, 512))
    # What was transparent is white, as on a page.
    assert scaled.getpixel((0, 0)) == (255, 255, 255)


def test_worker_unpacks_no_image_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders are C, and this process has the keys of the providers."""
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (4096, 8)).save(tmp_path / "x", "PNG")

    def unpacked(*given: object, **more: object) -> None:
        raise AssertionError("unpacked here")

    monkeypatch.setattr(pillow, "open", unpacked)
    assert fitting_data_url(tmp_path / "x").startswith("data:image/jpeg;base64,")


def test_image_that_keeps_its_decoder_busy_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each scan of a progressive JPEG goes over the whole picture; a file may have 170,000 of them."""
    pillow = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    pillow.new("L", (8000, 8000)).save(made, "JPEG", progressive=True)
    content = made.getvalue()
    tables = [at for at in range(len(content)) if content.startswith(b"\xff\xc4", at)]
    scans = [at for at in range(len(content)) if content.startswith(b"\xff\xda", at)]
    begin = max(at for at in tables if at < scans[1])
    end = min(at for at in (*tables, *scans) if at > scans[1])
    (tmp_path / "x").write_bytes(content[:-2] + content[begin:end] * 2_000 + b"\xff\xd9")
    monkeypatch.setattr(images, "CPU_S", 1)
    with pytest.raises(ValueError, match="it cannot be scaled: that takes too long"):
        fitting_data_url(tmp_path / "x")


def test_large_image_is_refused_with_the_remedy_where_nothing_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    (tmp_path / "x").write_bytes(png(2049, 1))
    with pytest.raises(ValueError, match=r"it has 2,049 × 1 pixels.*install Pillow"):
        fitting_data_url(tmp_path / "x")


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("about", ["width", "height", "both", "bytes"])
def test_image_is_sent_as_it_is_up_to_each_of_its_bounds(
    about: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    edge, size = (
        (images.SENT_EDGE, images.SENT_BYTES) if fits else (images.SENT_EDGE + 1, images.SENT_BYTES + 1)
    )
    content = {
        "width": png(edge, 1),
        "height": png(1, edge),
        "both": png(edge, edge),
        "bytes": png(1, 1, more=size - len(png(1, 1))),
    }[about]
    if fits:
        assert fitting_data_url(content) == encoded(content)
    else:
        with pytest.raises(ValueError, match="install Pillow"):
            fitting_data_url(content)


@pytest.mark.parametrize("more", [0, 1])
def test_file_is_read_up_to_its_bound(more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", len(png(1, 1)))
    (tmp_path / "x").write_bytes(png(1, 1, more=more))
    for read in (data_url, fitting_data_url):
        if more:
            with pytest.raises(ValueError, match="which is the most that can be sent"):
                read(tmp_path / "x")
        else:
            assert read(tmp_path / "x") == encoded(png(1, 1))


@pytest.mark.parametrize(("width", "height"), [(8192, 8192), (8192, 8193), (1, 64 << 20), (2, 64 << 20)])
def test_image_is_scaled_up_to_its_bound_of_pixels(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    told = "install Pillow" if width * height <= images.MOST_PIXELS else "can be scaled"
    with pytest.raises(ValueError, match=told):
        fitting_data_url(png(width, height))


def test_small_file_with_billions_of_pixels_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(png(60_000, 60_000))
    with pytest.raises(ValueError, match="can be scaled"):
        fitting_data_url(tmp_path / "x")


def test_image_that_cannot_be_unpacked_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "x").write_bytes(png(4096, 4096, more=100))
    with pytest.raises(ValueError, match="it cannot be scaled"):
        fitting_data_url(tmp_path / "x")


def test_file_with_too_many_bytes_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.write(PNG)
        file.truncate((20 << 20) + 1)
    with pytest.raises(ValueError, match="more than 20,971,520 bytes"):
        data_url(tmp_path / "x")


@pytest.mark.parametrize("url", ["https://x.org/a.png", encoded(PNG), encoded(b"GIF87a", "whatever")])
def test_url_of_an_image_is_taken(url: str) -> None:
    check_image_url(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://x.org/a.png", "an image is a URL"),
        ("file:///etc/passwd", "an image is a URL"),
        ("data:image/png,abc", "an image is a URL"),
        ("data:text/plain;base64,aGVsbG8=", "an image is a URL"),
        ("data:image/png;base64,a$", "is not base64"),
        ("data:image/png;base64,aGVsbG8=", "it is no PNG"),
        ("", "an image is a URL"),
    ],
)
def test_other_url_is_refused_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_image_url(url)


def test_url_with_too_many_bytes_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_images, "MAX_IMAGE_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        check_image_url("data:image/png;base64," + "$" * 200)


async def test_image_of_input_is_not_read_from_what_commands_do_not_see(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "workspaces").mkdir(parents=True)
    (home / "workspaces" / "other.png").write_bytes(png(1, 1))
    (tmp_path / "link.png").symlink_to(home / "workspaces" / "other.png")
    (tmp_path / "own.png").write_bytes(png(1, 1))
    files = Files(home, Guide(ProjectDocs(home, 1024), Skills(home, tmp_path)), hidden=(home,))
    assert await files.image(tmp_path / "own.png") == encoded(png(1, 1))
    for name in ("home/workspaces/other.png", "home/workspaces/../workspaces/other.png", "link.png"):
        with pytest.raises(PermissionError):
            await files.image(tmp_path / name)
