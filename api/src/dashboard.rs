//! The dashboard: a page for browsers. Its files (`api/dashboard/`) are part of the program.
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | the page |
//! | `GET /assets/FILE` | a part of it |
//!
//! Guarantees:
//! - The page needs nothing from anywhere else, and is told by its headers to take nothing (`http::site`).
//! - It has no figures of its own: it asks the API, with the token that somebody typed into it.

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::extract::Path;
use crate::server::ApiState;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The page.
const PAGE: &str = include_str!("../dashboard/index.html");

macro_rules! asset {
    ($name:literal, $file:literal, $kind:ident) => {
        ($name, $kind, include_str!(concat!("../dashboard/", $file)))
    };
}

/// The parts of the page: names, types and texts.
const ASSETS: &[(&str, &str, &str)] = &[
    asset!("style.css", "style.css", CSS),
    asset!("icon.svg", "icon.svg", SVG),
    asset!("app.js", "app.js", SCRIPT),
    asset!("api.js", "api.js", SCRIPT),
    asset!("changes.js", "changes.js", SCRIPT),
    asset!("chart.js", "chart.js", SCRIPT),
    asset!("dom.js", "dom.js", SCRIPT),
    asset!("format.js", "format.js", SCRIPT),
    asset!("rates.js", "rates.js", SCRIPT),
    // uPlot (MIT, `vendor/uplot.LICENSE`), as its authors built it.
    asset!("uplot.js", "vendor/uplot.js", SCRIPT),
    asset!("uplot.css", "vendor/uplot.css", CSS),
];

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    let page = async || ([(CONTENT_TYPE, HTML)], PAGE);
    Router::new()
        .route("/", get(page))
        .route("/assets/{file}", get(asset))
}

async fn asset(Path(file): Path<String>) -> Response {
    match ASSETS.iter().find(|(name, ..)| *name == file) {
        Some((_, kind, text)) => ([(CONTENT_TYPE, *kind)], *text).into_response(),
        None => (StatusCode::NOT_FOUND, "the page has no such part\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What a text names behind each of these beginnings, up to the next quote.
    fn named<'a>(text: &'a str, beginning: &str) -> BTreeSet<&'a str> {
        let parts = text.split(beginning).skip(1);
        parts.filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn every_part_that_the_page_names_is_there_and_every_part_is_named() {
        let mut used = named(PAGE, "\"/assets/");
        for (_, _, text) in ASSETS {
            used.extend(named(text, "from \"./"));
        }
        let there: BTreeSet<&str> = ASSETS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(used, there);
    }

    #[test]
    fn the_page_has_nothing_in_its_markup_that_its_policy_forbids() {
        for forbidden in [
            " style=",
            " onclick=",
            "<script>",
            "<style>",
            "http:",
            "https:",
        ] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        let own = ASSETS
            .iter()
            .filter(|(name, ..)| !name.starts_with("uplot"));
        for (name, _, text) in own {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
                "document.write",
            ] {
                assert!(!text.contains(forbidden), "{name}: {forbidden}");
            }
        }
    }
}
