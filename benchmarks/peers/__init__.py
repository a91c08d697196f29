"""Other projects on the same work as ours. Each needs the extra `[bench]`."""
