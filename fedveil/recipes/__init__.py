"""The tables and figures of the four papers, each a declaration of what to measure, beside what was published."""
