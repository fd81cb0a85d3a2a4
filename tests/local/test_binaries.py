"""The control plane's executables: cached, checked, downloaded or built."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import os
import tarfile
import threading
from pathlib import Path

import pytest

from kronos.local import binaries, download, gobuild, versions
from kronos.local.__main__ import main
from kronos.local.versions import ChecksumError, Platform, UnsupportedPlatformError

LINUX = Platform("linux", "amd64")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "/home/me/.cache/kronos"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/kronos"),
        ({"XDG_CACHE_HOME": "/x", "KRONOS_CACHE": "/k"}, "/k"),
    ],
)
def test_the_cache_is_where_the_user_wants_it(environ: dict[str, str], expected: str) -> None:
    assert binaries.cache_folder(environ, Path("/home/me")) == Path(expected)


def test_the_cache_key_names_versions_and_platform() -> None:
    assert LINUX.key == f"kubernetes-{versions.KUBERNETES_VERSION}_etcd-{versions.ETCD_VERSION}_linux-amd64"
    assert Platform.of("Linux", "aarch64").architecture == "arm64"


def test_the_modules_build_the_versions_that_are_downloaded() -> None:
    kubernetes = (gobuild.MODULES / "kubernetes" / "go.mod").read_text()
    assert f"require k8s.io/kubernetes {versions.KUBERNETES_VERSION}" in kubernetes
    assert f"server/v3 {versions.ETCD_VERSION}" in (gobuild.MODULES / "etcd" / "go.mod").read_text()


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "riscv64")])
def test_other_platforms_are_refused_with_a_way_out(system: str, machine: str) -> None:
    with pytest.raises(UnsupportedPlatformError, match="use a cluster elsewhere"):
        Platform.of(system, machine)


def test_a_wrong_checksum_is_refused() -> None:
    versions.verify("x", b"content", hashlib.sha256(b"content").hexdigest().upper() + "\n")
    with pytest.raises(ChecksumError, match="x has SHA-256"):
        versions.verify("x", b"content", "0" * 64)


def test_checksums_are_found_by_file_name() -> None:
    sums = "aaa  etcd-a.tar.gz\nbbb *etcd-b.tar.gz\n"
    assert versions.checksum_of("etcd-b.tar.gz", sums) == "bbb"
    with pytest.raises(ChecksumError, match="not among the published"):
        versions.checksum_of("a.tar.gz", sums)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go version go1.27rc1 linux/amd64", (1, 27)),
        ("gccgo version 13", None),
    ],
)
def test_go_versions_are_read(text: str, expected: tuple[int, int] | None) -> None:
    assert versions.parse_go_version(text) == expected


@pytest.mark.parametrize(
    ("seconds", "cores", "expected"),
    [(257, 2, "about 4 min"), (257, 16, "about 30 s"), (18, 2, "about 20 s")],
)
def test_estimates_follow_the_number_of_cores(seconds: int, cores: int, expected: str) -> None:
    assert gobuild.estimate(seconds, cores) == expected


def test_elapsed_time_is_short() -> None:
    assert [gobuild.elapsed(seconds) for seconds in (5, 80)] == ["5s", "1m20s"]


def test_the_build_keeps_proxies_and_drops_personal_settings() -> None:
    env = gobuild.build_environment(
        {"GOPROXY": "p", "GOFLAGS": "-x", "GOOS": "plan9", "GOWORK": "/w", "HOME": "/h"}
    )
    assert env["GOPROXY"] == "p"
    assert (env["GOFLAGS"], env["GOWORK"], env["CGO_ENABLED"]) == ("-mod=readonly", "off", "0")
    assert "GOOS" not in env


def fake_go(folder: Path, body: str) -> None:
    folder.mkdir()
    (folder / "go").write_text(
        f'#!/bin/sh\nif [ "$1" = version ]; then echo go version go1.26.9 linux/amd64; exit; fi\n{body}\n'
    )
    (folder / "go").chmod(0o755)


@pytest.fixture
def no_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("KRONOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(download, "answers", lambda url: False)
    return tmp_path


def test_without_releases_the_binaries_are_built_once(no_download: Path) -> None:
    fake_go(no_download / "bin", 'while [ "$1" != -o ]; do shift; done; echo built > "$2"; chmod +x "$2"')
    said: list[str] = []
    folder = binaries.ensure(said.append)
    assert sorted(path.name for path in folder.iterdir()) == sorted(versions.COMMANDS)
    assert any("building kube-apiserver" in line and "cores" in line for line in said)
    said.clear()
    assert binaries.ensure(said.append) == folder
    assert said == []


def test_the_programs_can_be_had_before_any_is_started(
    no_download: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_go(no_download / "bin", 'while [ "$1" != -o ]; do shift; done; echo built > "$2"; chmod +x "$2"')
    assert main(["programs"]) == 0
    assert "building kube-apiserver" in capsys.readouterr().err
    assert binaries.is_complete(no_download / "cache" / LINUX.key)


def test_two_at_once_build_once(no_download: Path) -> None:
    body = 'while [ "$1" != -o ]; do shift; done; echo x >> "$COUNT"; sleep 0.1; echo b > "$2"; chmod +x "$2"'
    fake_go(no_download / "bin", f"COUNT={no_download}/count; {body}")
    threads = [threading.Thread(target=binaries.ensure, args=([].append,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (no_download / "count").read_text().split() == ["x"] * len(versions.COMMANDS)


def test_a_failed_build_says_the_last_words_and_leaves_nothing(no_download: Path) -> None:
    fake_go(no_download / "bin", "echo 'undefined: Frobnicate'; exit 1")
    with pytest.raises(
        gobuild.BuildError, match=r"(?s)building kube-apiserver .* failed.*undefined: Frobnicate"
    ):
        binaries.ensure([].append)
    assert [path.name for path in (no_download / "cache").iterdir()] == [f"{LINUX.key}.lock"]


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A stand-in for the release servers."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        entry = tarfile.TarInfo(f"etcd-{versions.ETCD_VERSION}-linux-amd64/etcd")
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"etcd"))
    digest = hashlib.sha256(archive.getvalue()).hexdigest()
    files = {
        f"{LINUX.etcd_release_url}/SHA256SUMS": f"{digest}  {LINUX.etcd_archive}\n".encode(),
        f"{LINUX.etcd_release_url}/{LINUX.etcd_archive}": archive.getvalue(),
    }
    for command in versions.KUBERNETES_COMMANDS:
        files[LINUX.kubernetes_url(command)] = command.encode()
        files[LINUX.kubernetes_url(command) + ".sha256"] = (
            hashlib.sha256(command.encode()).hexdigest().encode()
        )

    def fetch(url: str, timeout: float, tell: object = None) -> bytes:
        if url not in files:
            raise TimeoutError(url)
        return files[url]

    monkeypatch.setattr(download, "fetch", fetch)
    return files


def test_releases_are_downloaded_and_checked(releases: dict[str, bytes], tmp_path: Path) -> None:
    assert download.download(LINUX, tmp_path, [].append)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        name: name for name in versions.COMMANDS
    }
    assert binaries.is_complete(tmp_path)


def test_a_tampered_release_is_refused(releases: dict[str, bytes], tmp_path: Path) -> None:
    releases[LINUX.kubernetes_url("kubectl")] = b"something else"
    with pytest.raises(ChecksumError, match="kubectl has SHA-256"):
        download.download(LINUX, tmp_path, [].append)


def test_a_download_that_stalls_gives_way_to_the_build(releases: dict[str, bytes], tmp_path: Path) -> None:
    del releases[LINUX.kubernetes_url("kube-scheduler")]
    assert not download.download(LINUX, tmp_path, [].append)


def test_the_progress_of_a_download_holds_an_estimate() -> None:
    mebibyte = 1024 * 1024
    text = download.describe_progress(20 * mebibyte, 100 * mebibyte, 4 * mebibyte)
    assert text == "20 of 100 MiB, about 20 s left"
    assert download.describe_progress(20 * mebibyte, 0, 1.0) == "20 MiB"


def test_a_file_is_fetched_over_http(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1_000_000)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        try:
            assert download.fetch(url + "file", 5) == b"x" * 1_000_000
            assert download.answers(url + "file")
            assert not download.answers(url + "missing")
        finally:
            server.shutdown()
