"""A chart read back: from the SVG's text to the numbers that a reader would see in it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import numpy as np

PLAIN = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-", "\u202f")


@dataclass(frozen=True)
class Text:
    """A text on the chart and the rectangle that it takes, by a width of 0.6 of its size for each character."""

    words: str
    left: float
    top: float
    right: float
    bottom: float

    def covers(self, other: Text) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


class Picture:
    """A parsed chart."""

    def __init__(self, text: str):
        self.root = ET.fromstring(text)
        for node in self.root.iter():
            node.tag = node.tag.replace("{http://www.w3.org/2000/svg}", "")
        self.parents = {child: node for node in self.root.iter() for child in node}

    def group(self, name: str) -> ET.Element:
        return next(node for node in self.root.iter("g") if node.get("class") == name)

    def inside(self, node: ET.Element, name: str) -> bool:
        while node is not None and node.get("class") != name:
            node = self.parents.get(node)
        return node is not None

    def coloured(self, place: int) -> list[ET.Element]:
        """What is drawn in the colour of the series with this place, but for the legend and what is hidden in defs."""
        groups = [node for node in self.root.iter("g") if node.get("class") == f"c{place + 1}"]
        return [mark for node in groups if not self.inside(node, "legend") for mark in node]

    def markers(self, place: int) -> np.ndarray:
        """Where the markers of a series are, [markers, 2] pixels."""
        found = [re.match(r"translate\((\S+) (\S+)\)", mark.get("transform", "")) for mark in self.coloured(place)]
        return np.array([[float(match[1]), float(match[2])] for match in found if match])

    def lines(self, place: int) -> list[np.ndarray]:
        """The stretches of a series' line, each [points, 2] pixels."""
        paths = [mark.get("d") for mark in self.coloured(place) if mark.get("stroke-width") == "2"]
        return [stretch for path in paths for stretch in stretches(path)]

    def dashed(self) -> list[np.ndarray]:
        """Reference lines, each [points, 2] pixels."""
        marks = [node for node in self.root.iter("path") if node.get("stroke-opacity") == "0.75"]
        return [stretches(mark.get("d"))[0] for mark in marks if not self.inside(mark, "legend")]

    def value(self, axis: str, pixel: np.ndarray, log: bool = False) -> np.ndarray:
        """The numbers at these pixels, as read off the ticks of the axis "x" or "y"."""
        group = self.group(f"{axis}-axis")
        numbers = np.array([read(text.text) for text in group.iter("text")])
        places = np.array([float(line.get(f"{axis}1")) for line in group.iter("line")])[: len(numbers)]
        slope, start = np.polyfit(places, np.log10(numbers) if log else numbers, 1)
        at = slope * np.asarray(pixel) + start
        return 10**at if log else at

    def texts(self) -> list[Text]:
        """All texts that stand level or upright."""
        return [box for node in self.root.iter("text") if (box := self._box(node))]

    def _box(self, node: ET.Element) -> Text | None:
        size, x, y = (float(node.get(key)) for key in ("font-size", "x", "y"))
        wide = 0.6 * size * len(node.text)
        start = x - wide * {"start": 0, "middle": 0.5, "end": 1}[node.get("text-anchor")]
        left, top, right, bottom = start, y - 0.75 * size, start + wide, y + 0.2 * size
        turn = re.match(r"rotate\((\S+) (\S+) (\S+)\)", self.parents[node].get("transform", ""))
        if turn and turn[1] != "-90":
            return None
        if turn:
            cx, cy = float(turn[2]), float(turn[3])
            left, top, right, bottom = cx + top - cy, cy - (right - cx), cx + bottom - cy, cy - (left - cx)
        return Text(node.text, left, top, right, bottom)


def stretches(path: str) -> list[np.ndarray]:
    """`M1 2L3 4M5 6` as arrays of points."""
    return [np.array([point.split() for point in part.split("L")], float) for part in path.strip("Mz").split("M")]


def read(text: str) -> float:
    """`2×10⁻⁴`, `10⁵` or `−1 000` as a number."""
    mantissa, power = re.fullmatch(r"(.*?)(?:10)?([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]*)", text).groups()
    if not power:
        return float(text.translate(PLAIN))
    return float(mantissa.rstrip("×").translate(PLAIN) or 1) * 10.0 ** int(power.translate(PLAIN))


def untidy(picture: Picture) -> list[str]:
    """Texts that cover one another or leave the chart."""
    texts, (_, _, width, height) = picture.texts(), map(float, picture.root.get("viewBox").split())
    outside = [t.words for t in texts if t.left < 0 or t.top < 0 or t.right > width or t.bottom > height]
    pairs = [(a, b) for place, a in enumerate(texts) for b in texts[place + 1 :]]
    return outside + [f"{a.words} / {b.words}" for a, b in pairs if a.covers(b)]
