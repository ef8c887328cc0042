//! A self-contained HTML page for reports, for screens and phones, light or dark.

use std::fmt::Write as _;

use crate::chart::{Chart, NEUTRAL, escape};

const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--soft:#667;--line:#d8dce2;\
--c0:#2563c9;--c1:#d9480f;--c2:#1b8a4b;--c3:#9333b8;--c4:#b8860b;--c5:#0e8a9c;--c6:#c2255c;--c7:#5c6770;\
--c8:#7048e8;--c9:#66801f;--c10:#667}\
@media(prefers-color-scheme:dark){:root{--page:#15181c;--text:#e6e8eb;--soft:#9aa3ad;--line:#353b43;\
--c0:#6ea3ff;--c1:#ff8a4c;--c2:#4cc77f;--c3:#cf8cf0;--c4:#e3b341;--c5:#4fc3d6;--c6:#ff7aa8;--c7:#aab4be;\
--c8:#a78bfa;--c9:#b3cf5b;--c10:#9aa3ad}}\
body{margin:0 auto;padding:1rem;max-width:82rem;background:var(--page);color:var(--text);\
font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem}p{max-width:44rem}\
.plots{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,22rem),1fr))}\
figure{margin:0}figcaption{font-weight:600;font-size:.9rem}svg{width:100%;height:auto;display:block}\
svg text{fill:var(--soft);font:12px system-ui,sans-serif}.grid{stroke:var(--line);stroke-width:1}\
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.line.dashed{stroke-dasharray:5 4}.area{fill-opacity:.85}\
.legend{margin:.2rem 0 0;font-size:.8rem;color:var(--soft)}.legend span{white-space:nowrap;margin-right:.7em}\
.legend i{display:inline-block;width:1em;height:.25em;margin-right:.3em;vertical-align:middle}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .8rem .2rem 0;text-align:right;border-bottom:1px solid var(--line);white-space:pre}\
th:first-child,td:first-child{text-align:left}details{margin:.5rem 0}summary{cursor:pointer}\
.events td{text-align:left;white-space:normal}.events td:first-child{text-align:right;white-space:pre;\
padding-right:1rem}";

/// The beginning of a page.
pub fn begin(title: &str) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{}</title><style>",
        escape(title)
    );
    page.push_str(STYLE);
    for colour in 0..=NEUTRAL {
        let _ = write!(
            page,
            ".c{colour}{{stroke:var(--c{colour})}}.f{colour}{{fill:var(--c{colour})}}\
             .k{colour}{{background:var(--c{colour})}}"
        );
    }
    page.push_str("</style></head><body>");
    page
}

/// Completes the page.
pub fn end(mut page: String) -> String {
    page.push_str("</body></html>\n");
    page
}

/// Appends a table; the first row has the headings.
pub fn table(page: &mut String, rows: &[Vec<String>]) {
    page.push_str("<div class=\"scroll\"><table>");
    for (index, row) in rows.iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<{tag}>{}</{tag}>", escape(cell));
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div>");
}

/// Appends a heading, a paragraph, and plots side by side.
pub fn section(page: &mut String, title: &str, words: &str, charts: Vec<Chart>) {
    let _ = write!(
        page,
        "<h2>{}</h2><p>{}</p><div class=\"plots\">",
        escape(title),
        escape(words)
    );
    for chart in charts {
        page.push_str(&chart.figure());
    }
    page.push_str("</div>");
}
