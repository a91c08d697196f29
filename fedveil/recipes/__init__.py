"""The tables and figures of the four papers as declarations of what to measure, beside the published values.

| module | what it does |
|---|---|
| `fed_cdp`, `cpl`, `two_dp_fl`, `dpfl`, `beyond` | the recipes: one module per paper, one function per table or figure |
| `cell`, `catalog` | the vocabulary of recipes; all recipes by name |
| `kinds`, `kinds_*` | how each kind of cell is measured |
| `run`, `cache` | running jobs; storing their results by digest |
| `table`, `page`, `published` | measured beside published values; the documentation page; the published values |
"""
