"""The table of docs/security.md counts the tests as they are."""

from __future__ import annotations

from tests import security_table


def test_the_table_is_counted_from_the_tests():
    text = security_table.PAGE.read_text(encoding="utf-8")
    assert security_table.page(text) == text, "run: python -m tests.security_table"
