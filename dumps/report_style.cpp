// Style and script of the report, inline so that the file stands alone. Colours carry nothing that a figure or a sign
// does not say as well. The script only helps: arrow keys in maps, a filter over the long table.
#include "dumps/report_parts.h"

namespace assay::report {

const char* const kStyle = R"css(
:root{color-scheme:light dark;
 --page:#fbfbfa;--ink:#1c2128;--soft:#5a636e;--line:#d9dde2;--card:#ffffff;--head:#f3f4f5;--link:#1a5fb4;
 --pass:#1d6b3a;--passbg:#e4f3e9;--fail:#9b1c1c;--failbg:#fbe7e5;--warn:#7a4f00;--warnbg:#fcf1d9;--bar:#8fb3d3;--bar2:#d99a5b;
 --h0:#f1f4f7;--h1:#e4ecf3;--h2:#d5e3ee;--h3:#c6dbe3;--h4:#cfe0c4;--h5:#efe6ad;--h6:#f7d182;--h7:#f0a95c;--h8:#db7038;--h9:#96291a;
 --d8:#1c2128;--d9:#ffffff;--dh:#1c2128;--d7:#1c2128}
@media (prefers-color-scheme:dark){:root{
 --page:#14171b;--ink:#e3e6ea;--soft:#9aa4af;--line:#333a43;--card:#1a1e24;--head:#20252c;--link:#8ab8f0;
 --pass:#85d6a0;--passbg:#17301f;--fail:#ff9d92;--failbg:#3a1a18;--warn:#f0c674;--warnbg:#33290f;--bar:#4f7ea8;--bar2:#b3732f;
 --h0:#1d232b;--h1:#202d3a;--h2:#243849;--h3:#254450;--h4:#2f4a38;--h5:#51501f;--h6:#735a1a;--h7:#94571a;--h8:#d8783c;--h9:#ffb39a;
 --d8:#14171b;--d9:#14171b;--dh:#e3e6ea;--d7:#ffffff}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}
main,header,footer,nav.toc{max-width:1320px;margin:0 auto;padding:0 24px}
header{padding-top:28px}
h1{font-size:1.45rem;line-height:1.25;margin:0 0 .2rem;font-weight:650;letter-spacing:-.01em}
h2{font-size:1.12rem;margin:2.4rem 0 .7rem;font-weight:650;padding-top:.9rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .4rem;font-weight:600}
p{margin:.4rem 0}
a{color:var(--link)}
code,.mono,td,th{font-variant-numeric:tabular-nums}
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.88em;overflow-wrap:anywhere}
.skip-link{position:absolute;left:-999px;top:0;background:var(--card);color:var(--link);padding:.5rem .8rem;z-index:9}
.skip-link:focus{left:8px;top:8px}
:focus-visible{outline:3px solid var(--link);outline-offset:1px}
nav.toc ul{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:0;margin:.8rem 0 0;list-style:none;font-size:.92rem}
.soft,.note,.say{color:var(--soft)}
.note,.say{font-size:.88rem}
.say{min-height:1.5em;margin:.25rem 0 1rem;overflow-wrap:anywhere}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px 20px;margin:14px 0}
.verdict{display:flex;flex-wrap:wrap;gap:.5rem .8rem;align-items:baseline;margin:0 0 .7rem}
.verdict p{margin:0;min-width:0;overflow-wrap:anywhere;flex:1 1 20rem}
.badge{font-weight:700;letter-spacing:.03em;border-radius:5px;padding:.1rem .55rem;border:1px solid currentColor;white-space:nowrap}
.pass{color:var(--pass);background:var(--passbg)}.fail{color:var(--fail);background:var(--failbg)}
.near{color:var(--warn);background:var(--warnbg)}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.22rem 1.2rem;margin:.4rem 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
ul.plain{margin:.2rem 0;padding-left:1.1rem}
.box{overflow-x:auto;max-width:100%;border:1px solid var(--line);border-radius:8px;background:var(--card);margin:.6rem 0 .2rem}
table{border-collapse:separate;border-spacing:0;font-size:.86rem;line-height:1.35}
.cap{color:var(--soft);font-size:.88rem;margin:1rem 0 -.2rem}
.box>table:not(.heat):not(.kill){min-width:100%}
th,td{padding:.26rem .7rem;text-align:left;vertical-align:top;border-top:1px solid var(--line)}
thead tr:first-child th{border-top:0}thead th{background:var(--head);font-weight:600;white-space:nowrap;vertical-align:bottom}
tbody th{font-weight:500}
.n{text-align:right;white-space:nowrap}
td code,th code{white-space:nowrap}td{max-width:34rem}
tr.bad>:first-child{box-shadow:inset 3px 0 var(--fail)}
tr.here{background:var(--failbg)}tr.here>:first-child{box-shadow:inset 3px 0 var(--fail)}
.st{font-weight:600;border-radius:4px;padding:0 .35rem;white-space:nowrap}
table.heat{font-size:.74rem}
.heat th,.heat td{border:0;padding:.2rem .3rem;text-align:center}
.heat td{border-right:1px solid var(--card);border-bottom:1px solid var(--card);min-width:2.5rem;white-space:nowrap;cursor:default}
.heat tbody th,.heat thead th:first-child,.kill tbody th,.kill thead th:first-child{position:sticky;left:0;background:var(--head);text-align:right;z-index:1;white-space:nowrap;padding:.2rem .6rem}
.heat thead th{vertical-align:bottom;text-align:center}
.upright thead th:not(:first-child) span{writing-mode:vertical-rl;transform:rotate(180deg);display:inline-block;text-align:left;padding:.3rem 0}
.heat td.f{font-weight:700;box-shadow:inset 0 0 0 1.5px currentColor}
.h0{background:var(--h0);color:var(--dh)}.h1{background:var(--h1);color:var(--dh)}.h2{background:var(--h2);color:var(--dh)}
.h3{background:var(--h3);color:var(--dh)}.h4{background:var(--h4);color:var(--dh)}.h5{background:var(--h5);color:var(--dh)}
.h6{background:var(--h6);color:var(--dh)}.h7{background:var(--h7);color:var(--d7)}.h8{background:var(--h8);color:var(--d8)}
.h9{background:var(--h9);color:var(--d9)}
td.skip{color:var(--soft)}td.odd{background:var(--failbg);color:var(--fail)}
.legend{display:flex;flex-wrap:wrap;gap:.25rem .7rem;font-size:.84rem;color:var(--soft);align-items:center}
.key{padding:.05rem .45rem;border-radius:3px}.legend .key+.key{margin-left:-.62rem}
.kill td{text-align:center;min-width:3.2rem;font-size:.82rem}
.kill thead th:not(:first-child) span{writing-mode:vertical-rl;transform:rotate(180deg);display:inline-block;text-align:left;font-weight:500;max-height:16rem;padding:.3rem 0}
.kill tbody th{text-align:left}
.kill td.want{box-shadow:inset 0 0 0 2px var(--soft)}
.track{display:inline-block;width:6rem;height:.7rem;background:var(--head);border-radius:3px;vertical-align:middle}
.track i{display:block;height:100%;border-radius:3px;background:var(--bar)}.track.base i{background:var(--bar2)}
details{margin:.6rem 0}summary{cursor:pointer;padding:.2rem 0}
input[type=search]{font:inherit;padding:.3rem .6rem;border:1px solid var(--line);border-radius:6px;background:var(--card);color:inherit;width:min(24rem,100%)}
footer{padding-top:1.5rem;padding-bottom:2.5rem;color:var(--soft);font-size:.88rem}
@media (max-width:640px){main,header,footer,nav.toc{padding-left:14px;padding-right:14px}.card{padding:12px 14px}
 dl{grid-template-columns:minmax(0,1fr);gap:0}dd{margin-bottom:.45rem}body{font-size:14px}}
@media print{@page{size:A4 landscape;margin:11mm}
 :root{--page:#fff;--card:#fff}body{font-size:9pt}
 main,header,footer{max-width:none;padding:0}nav.toc,.skip-link,.say,input[type=search]{display:none}
 .box{overflow:visible;border:0;margin:.2rem 0}table{font-size:7pt}table.heat{font-size:5pt}
 .heat th,.heat td{padding:.08rem .06rem;min-width:0}.heat tbody th,.kill tbody th{position:static;padding:.08rem .3rem}
 th,td{padding:.12rem .4rem}h2{break-after:avoid}tr,.card{break-inside:avoid}thead{display:table-header-group}
 *{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
)css";

const char* const kScript = R"js(
for(const t of document.querySelectorAll('table[role=grid]')){
 const rows=[...t.tBodies[0].rows].map(r=>[...r.cells].filter(c=>c.tagName==='TD'));
 const say=document.getElementById(t.id+'-say');let at=null;
 const label=c=>{const r=c.parentNode,h=t.tHead.rows[0].cells;
  return h[0].textContent+' '+r.cells[0].textContent+', '+h[c.cellIndex].textContent+': '+(c.title||'nothing compared')};
 const go=(c,focus)=>{if(at)at.tabIndex=-1;at=c;c.tabIndex=0;if(focus)c.focus()};
 rows.flat().forEach(c=>{c.tabIndex=-1});
 if(rows[0]&&rows[0][0])go(rows[0].find(c=>c.title)||rows[0][0],false);
 t.addEventListener('focusin',e=>{const c=e.target.closest('td');if(c&&say){go(c,false);say.textContent=label(c)}});
 t.addEventListener('mouseover',e=>{const c=e.target.closest('td');if(c&&say)say.textContent=label(c)});
 t.addEventListener('click',e=>{const c=e.target.closest('td');if(c)go(c,true)});
 t.addEventListener('keydown',e=>{const c=e.target.closest('td');if(!c)return;
  let r=rows.findIndex(x=>x.includes(c)),k=rows[r].indexOf(c);
  const move={ArrowUp:[-1,0],ArrowDown:[1,0],ArrowLeft:[0,-1],ArrowRight:[0,1]}[e.key];
  if(move){r+=move[0];k+=move[1]}else if(e.key==='Home'){k=0}else if(e.key==='End'){k=rows[r].length-1}else return;
  e.preventDefault();if(rows[r]&&rows[r][k])go(rows[r][k],true)});
}
for(const f of document.querySelectorAll('input[data-for]')){
 const rows=[...document.getElementById(f.dataset.for).tBodies[0].rows];
 f.hidden=false;f.addEventListener('input',()=>{const q=f.value.trim();for(const r of rows)r.hidden=q!==''&&!r.textContent.includes(q)});
}
)js";

}  // namespace assay::report
