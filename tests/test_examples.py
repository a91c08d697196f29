"""The example configs load, name datasets and keys that there are, and say what to sweep."""

from pathlib import Path

import pytest

from fedveil.config import for_attack, from_dict, read, resolve

FILES = sorted((Path(__file__).parents[1] / "examples").glob("**/*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_examples_resolve(file):
    document = {key: value for key, value in read(file).items() if key != "sweep"}  # for fedveil sweep alone
    config = resolve(for_attack(from_dict(document)), trainable=False)
    assert config.attack.images <= 100
    assert file.read_text(encoding="utf-8").startswith("#")


def test_every_axis_has_an_example():
    wanted = {"batch", "local-steps", "compression", "noise", "activation", "dropout", "pooling", "resolution", "xray"}
    assert wanted <= {file.stem for file in FILES}
