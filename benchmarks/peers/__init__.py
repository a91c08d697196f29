"""Other projects, set to the same work; each needs the extra `[bench]`."""
