//! The pages of `examples/web` and the code of `docs/front-ends.md`, played in a browser.

use crate::compat::sdk::{chromium, in_javascript, runs_to_its_end};
use crate::support::{TestServer, without_postgres};

// The events that a page receives on each engine are tested with the same clients outside a browser, in `sdk.rs` and in
// `streams`.
without_postgres! {
    the_page_without_a_build_works,
    the_page_with_react_works,
    the_page_with_svelte_works,
    the_code_of_the_guide_works,
}

/// Plays one of the pages, which needs these packages.
async fn plays(server: TestServer, name: &str, packages: &[&str]) {
    let packages = [&["esbuild", "playwright-core"], packages].concat();
    let (Some(mut scene), Some(chromium)) = (in_javascript("web.mjs", &packages, &server), chromium()) else {
        return;
    };
    scene.args([chromium.as_str(), name]);
    assert_eq!(runs_to_its_end(scene).await, "the pages work\n");
}

async fn the_page_without_a_build_works(server: TestServer) {
    plays(server, "plain", &[]).await;
}

async fn the_page_with_react_works(server: TestServer) {
    plays(server, "react", &["@langchain/react", "react-dom"]).await;
}

async fn the_page_with_svelte_works(server: TestServer) {
    plays(server, "svelte", &["@langchain/svelte", "svelte"]).await;
}

async fn the_code_of_the_guide_works(server: TestServer) {
    plays(server, "guide", &[]).await;
}

#[test]
fn the_page_without_a_build_is_short_and_needs_nobody_else() {
    let page = include_str!("../../../examples/web/plain/index.html");
    assert!(page.lines().count() <= 80, "{} lines", page.lines().count());
    assert!(page.lines().all(|line| line.chars().count() <= 160), "a line is long");
    let addresses: Vec<&str> = page.split("http").skip(1).collect();
    assert!(
        addresses.iter().all(|rest| rest.starts_with("://127.0.0.1")),
        "{addresses:?}"
    );
    assert!(
        !page.contains("src=") && !page.contains("import "),
        "it loads something"
    );
}

#[test]
fn the_examples_use_the_versions_that_are_tested() {
    let versions = |path: &str| -> serde_json::Value {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
    };
    let tested = versions("tests/sdk/js/package.json");
    for name in ["react", "svelte"] {
        let example = versions(&format!("examples/web/{name}/package.json"));
        for part in ["dependencies", "devDependencies"] {
            for (package, version) in example[part].as_object().expect(part) {
                assert_eq!(&tested["dependencies"][package], version, "{name}, {package}");
            }
        }
    }
}
