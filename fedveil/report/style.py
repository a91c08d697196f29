"""The page's style sheet: light and dark by the reader's choice, narrow screens, paper."""

from __future__ import annotations

CSS = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #566173; --paper: #ffffff; --card: #f5f7fa; --line: #d5dbe3;
  --bad: #a3210f; --bad-bg: #fdeae6; --weak: #7a4b00; --weak-bg: #fff3da; --good: #12603a; --good-bg: #e4f5ea;
  --none: #46505e; --none-bg: #eceff3; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #a3afbf; --paper: #14181e; --card: #1d232b;
  --line: #37414e; --bad: #ffb4a6; --bad-bg: #4a1a12; --weak: #ffd98a; --weak-bg: #43310a; --good: #9fe0b8;
  --good-bg: #12351f; --none: #c5cdd8; --none-bg: #2a323c; --link: #8cc4ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.2rem; max-width: 66rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .2rem 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; padding-top: .5rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.03rem; margin: 1.3rem 0 .4rem; }
p, ul { margin: .4rem 0 .7rem; max-width: 48rem; }
ul { padding-left: 1.2rem; }
ul.plain { list-style: none; padding-left: 0; }
.sees { font-weight: 400; }
a { color: var(--link); }
.soft, caption, figcaption { color: var(--soft); font-size: .88rem; }
nav { font-size: .92rem; margin: .6rem 0 0; }
nav a { margin-right: .9rem; white-space: nowrap; }
.answer { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem;
  margin: .8rem 0; }
.answer h3 { margin-top: .4rem; }
.answer li { margin: .25rem 0; }
.warn { border-left: 4px solid var(--weak); background: var(--weak-bg); color: var(--weak); padding: .4rem .8rem;
  max-width: 48rem; }
.wide { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; font-size: .9rem; min-width: 24rem; }
caption { text-align: left; padding: .2rem 0; caption-side: top; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; }
tbody th { font-weight: 600; min-width: 7rem; }
td { min-width: 4rem; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.tag { display: inline-block; border-radius: 4px; padding: 0 .45rem; font-weight: 600; font-size: .88rem;
  white-space: nowrap; }
.leak { color: var(--bad); background: var(--bad-bg); }
.weak { color: var(--weak); background: var(--weak-bg); }
.limited { color: var(--good); background: var(--good-bg); }
.open, .unknown { color: var(--none); background: var(--none-bg); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1rem; align-items: start; }
figure { margin: 0 0 1rem; }
figure svg { display: block; max-width: 100%; height: auto; }
.grids { display: flex; flex-wrap: wrap; gap: 1rem .7rem; align-items: flex-start; }
table.grid { min-width: 0; font-size: .78rem; }
table.grid th, table.grid td { border: 0; padding: .1rem .12rem; text-align: center; min-width: 0; }
table.grid tbody th { text-align: right; font-weight: 400; color: var(--soft); min-width: 0; white-space: nowrap; }
table.grid img { width: var(--side); height: var(--side); object-fit: contain; image-rendering: pixelated; display: block;
  background: #888; border: 1px solid var(--line); }
.hit { color: var(--bad); font-weight: 600; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; overflow-x: auto;
  font: .82rem/1.45 ui-monospace, 'DejaVu Sans Mono', monospace; }
code { font: .88em ui-monospace, 'DejaVu Sans Mono', monospace; overflow-wrap: anywhere; }
@media (max-width: 34rem) { body { padding: .8rem; font-size: 15px; } .answer { padding: .4rem .7rem; }
  table.stacks { min-width: 0; width: 100%; } table.stacks thead { display: none; }
  table.stacks tr, table.stacks th, table.stacks td { display: block; border: 0; }
  table.stacks tr { border-bottom: 2px solid var(--line); padding: .4rem 0; }
  table.stacks th, table.stacks td { padding: .2rem 0; }
  table.stacks td::before { content: attr(data-column); display: block; color: var(--soft); font-size: .8rem; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff; --card: #f5f7fa; --line: #bbb;
    --bad: #8c1a0b; --bad-bg: #fdeae6; --weak: #6b4200; --weak-bg: #fff3da; --good: #0e4f2f; --good-bg: #e4f5ea;
    --none: #333; --none-bg: #eceff3; --link: #000; }
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 9.5pt; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  nav { display: none; }
  .wide, pre { overflow: visible; }
  pre { white-space: pre-wrap; }
  h2, h3 { break-after: avoid; }
  figure, tr, li { break-inside: avoid; }
  .charts { grid-template-columns: 1fr 1fr; }
  table { font-size: 8.5pt; }
  h2 { margin-top: 1.2rem; }
  a { text-decoration: none; } }
"""
