//! The headers of requests to other servers that a definition may set.

use super::diagnostic::Diagnostic;
use super::words::is_word;
use crate::domain::field_path::FieldPath;
use crate::domain::headers::Headers;

/// Headers that only the connection sets: the target of a request, the framing of its body, and headers between two
/// hops.
const RESERVED: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "connection",
    "keep-alive",
];

/// Returns why a header of this name cannot be given, continuing "the header …"; none if it can be.
pub fn header_name_problem(name: &str) -> Option<&'static str> {
    if !is_word(name, 128, "!#$%&'*+.^`|~") {
        Some("is not a header name")
    } else if is_reserved_header(name) {
        Some("is set by the connection itself and cannot be given")
    } else {
        None
    }
}

/// Returns whether only the connection sets a header of this name.
fn is_reserved_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RESERVED.contains(&name.as_str()) || name.starts_with("proxy-")
}

/// Checks `headers`, which are the value of `field`.
pub fn check_headers(field: &FieldPath, headers: &Headers) -> Vec<Diagnostic> {
    let mut findings = vec![];
    for (name, value) in &headers.0 {
        let field = field.then(name);
        if let Some(problem) = header_name_problem(name) {
            findings.push(Diagnostic::error(field.clone(), problem));
        }
        if value.chars().any(char::is_control) {
            findings.push(Diagnostic::error(field, "must be one line without control characters"));
        } else if value == Headers::MASK {
            let message = "is what stands for a value that is not shown; give the value itself";
            findings.push(Diagnostic::error(field, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn values_are_not_printed_and_what_cannot_be_sent_is_told() {
        let headers = Headers(BTreeMap::from([
            ("x-key".to_owned(), "hush".to_owned()),
            ("x key".to_owned(), "a\nb".to_owned()),
            ("x-mask".to_owned(), Headers::MASK.to_owned()),
        ]));
        let printed = format!("{headers:?}");
        assert!(printed.contains("x-key") && !printed.contains("hush"), "{printed}");
        let fields: Vec<String> = check_headers(&FieldPath::of(["headers"]), &headers)
            .iter()
            .map(|finding| finding.field.to_string())
            .collect();
        assert_eq!(fields, [r#"headers."x key""#, r#"headers."x key""#, "headers.x-mask"]);
    }

    #[test]
    fn headers_of_the_connection_cannot_be_given() {
        let names = [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "te",
            "trailer",
            "upgrade",
            "connection",
            "keep-alive",
        ];
        for name in names.into_iter().chain(["proxy-authorization", "Proxy-Connection"]) {
            let headers = Headers(BTreeMap::from([(name.to_owned(), "x".to_owned())]));
            let findings = check_headers(&FieldPath::of(["headers"]), &headers);
            assert_eq!(findings.len(), 1, "{name}");
            assert!(findings[0].field.to_string().contains(name), "{name}");
        }
        let usual = Headers(BTreeMap::from([("authorization".to_owned(), "x".to_owned())]));
        assert_eq!(check_headers(&FieldPath::default(), &usual), []);
    }
}
