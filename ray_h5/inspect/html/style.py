"""The style of the page, in light and dark."""

STYLE = """
:root { --back: #fff; --text: #1b1f24; --faint: #5c6670; --line: #d8dee4; --panel: #f5f7f9; --accent: #0b62c4;
  --chunk: #cfd8e1; --read: #e8710a; --bad: #b3261e; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181d; --text: #e4e8ec; --faint: #9aa5b1; --line: #313a44; --panel: #1d232a; --accent: #6cb0ff;
    --chunk: #3a4652; --read: #ff9a3d; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(0.8rem, 3vw, 2.5rem) 4rem; max-width: 90rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 0.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; border-bottom: 1px solid var(--line); padding-bottom: 0.2rem; }
p { margin: 0.3rem 0; max-width: 75ch; overflow-wrap: anywhere; }
p.faint, figcaption, th.faint { color: var(--faint); }
p.bad { color: var(--bad); font-weight: 600; }
ul { margin: 0.3rem 0; padding-left: 1.3rem; } li { margin: 0.3rem 0; max-width: 110ch; overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 0.7rem 1rem;
  overflow-x: auto; margin: 0.5rem 0; font-size: 13px; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; padding: 0.35rem 0.7rem; border-bottom: 1px solid var(--line); vertical-align: middle; }
tr:last-child td, tr:last-child th { border-bottom: 0; }
thead th { background: var(--panel); font-weight: 600; white-space: nowrap; }
tbody th { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; min-width: 8rem; max-width: 22rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.number { text-align: right; }
.layouts { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: 1rem; }
.layouts > div { border: 1px solid var(--line); border-radius: 6px; padding: 0.6rem 0.8rem; }
.layouts b { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
figure { margin: 0.4rem 0 0; } figcaption { font-size: 12px; }
rect.chunk { fill: var(--chunk); } rect.read { fill: var(--read); }
svg.line { display: block; } svg.line polyline { fill: none; stroke: var(--accent); stroke-width: 1; }
td img { display: block; width: auto; height: auto; min-width: 48px; min-height: 32px; max-width: 160px;
  max-height: 96px; image-rendering: pixelated; }
td .text { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; display: inline-block; max-width: 20rem; }
"""
