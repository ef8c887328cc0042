//! The web page: three files embedded in the program. It shows data of the API and contains none itself, so it needs
//! no token.

use axum::Router;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::routing::get;

/// No resources from other hosts, no inline script or style, no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The paths of the page and its files.
pub(crate) const FILES: [&str; 3] = ["/", "/page.css", "/page.js"];

/// The page at `/`, its style and its script; they need no token.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route(
            "/",
            get(async || file("text/html", include_str!("../page/index.html"))),
        )
        .route(
            "/page.css",
            get(async || file("text/css", include_str!("../page/page.css"))),
        )
        .route(
            "/page.js",
            get(async || file("text/javascript", include_str!("../page/page.js"))),
        )
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let kind = format!("{kind}; charset=utf-8");
    let headers: [(HeaderName, String); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY.to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::REFERRER_POLICY, "no-referrer".to_owned()),
        (header::X_FRAME_OPTIONS, "DENY".to_owned()),
        // The next version can differ.
        (header::CACHE_CONTROL, "no-cache".to_owned()),
    ];
    (headers, text)
}

#[cfg(test)]
mod tests {
    const SCRIPT: &str = include_str!("../page/page.js");
    const PAGE: &str = include_str!("../page/index.html");

    #[test]
    fn nothing_is_set_as_markup_and_nothing_comes_from_elsewhere() {
        for never in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ] {
            assert!(!SCRIPT.contains(never), "{never}");
        }
        for text in [SCRIPT, PAGE, include_str!("../page/page.css")] {
            let elsewhere = text.matches("http").count() - text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(elsewhere, 0);
        }
        // The content security policy forbids both.
        assert!(!PAGE.contains("style=") && !PAGE.contains("onclick="));
    }

    #[test]
    fn what_the_script_looks_for_is_on_the_page() {
        let ids = SCRIPT
            .split("at(\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        let mut count = 0;
        for id in ids {
            assert!(PAGE.contains(&format!("id=\"{id}\"")), "no {id}");
            count += 1;
        }
        assert!(count > 10);
    }
}
