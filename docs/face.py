"""Draws docs/pictures/face.png: one face, as the attack rebuilds it without a defence and under Fed-CDP.

Usage: `FEDVEIL_DATA=FOLDER python docs/face.py`, where FOLDER holds the LFW faces (see docs/data.md). It takes half a
minute on two cores. The script runs `fedveil attack` twice on the same client, batch and initial model.
`train.noise_seed` fixes the draws, so a second run of the script gives the same picture on the same machine.

The face is from Labeled Faces in the Wild (Huang, Ramesh, Berg and Learned-Miller 2007), a public research dataset.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

PICTURE = Path(__file__).parent / "pictures" / "face.png"
SIDE = 192  # pixels of one enlarged face
GAP = 6  # white pixels between two faces
FACE = 2  # which of the attacked faces is shown

# Both attacks see the update of one local step on one face. Fed-CDP would draw Poisson batches by default; a fixed
# cohort and shuffled batches give both attacks the same victim.
SETTINGS = (
    "preset=paper",  # σ = 6, C = 4, noise on each example
    "data.name=lfw",
    "data.min_images=14",
    "attack.images=4",
    "attack.tap=client",
    "train.sampling=fixed",
    "train.batching=shuffle",
    "train.noise_seed=1",
)


def attack(defense: str, folder: Path) -> tuple[np.ndarray, np.ndarray, float]:
    """The true face, the face that the attack rebuilds, both [height, width, 3] bytes, and their similarity (SSIM)."""
    settings = [word for setting in (*SETTINGS, f"defense.name={defense}") for word in ("-s", setting)]
    command = [sys.executable, "-m", "fedveil", "attack", *settings, "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.glob("attacks/*.npz")
    with np.load(file) as result:
        truth, found, ssim = (result[f"pictures/{name}"] for name in ("truth", "found", "ssim"))
    return truth[FACE], found[-1][FACE], float(ssim[FACE])


def enlarge(face: np.ndarray) -> np.ndarray:
    """The face at SIDE × SIDE pixels, by nearest neighbour."""
    return np.asarray(Image.fromarray(face).resize((SIDE, SIDE), Image.Resampling.NEAREST))


def main() -> None:
    """Attacks the same face twice and writes truth, undefended and defended reconstruction side by side."""
    with tempfile.TemporaryDirectory() as scratch:
        truth, undefended, plain = attack("none", Path(scratch) / "none")
        same, defended, private = attack("fed-cdp", Path(scratch) / "fed-cdp")
    if not np.array_equal(truth, same):
        raise SystemExit("the two attacks have different victims: check SETTINGS")
    gap = np.full((SIDE, GAP, 3), 255, np.uint8)
    row = [enlarge(truth), gap, enlarge(undefended), gap, enlarge(defended)]
    Image.fromarray(np.concatenate(row, axis=1)).save(PICTURE, optimize=True)
    print(f"{PICTURE}: SSIM {plain:.3f} without a defence, {private:.3f} under Fed-CDP")


if __name__ == "__main__":
    main()
