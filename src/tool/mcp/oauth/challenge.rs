//! The header `www-authenticate` of a server that requires a token (RFC 9110, section 11.6.1; RFC 6750; RFC 9728).

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

use crate::domain::oauth_scopes::OAuthScopes;

/// The longest value of the header that is read, in bytes.
const MAX_BYTES: usize = 8 * 1024;

/// The parts of a `Bearer` challenge that a client needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Challenge {
    /// The address of the metadata of the server.
    pub(super) resource_metadata: Option<String>,
    /// The scopes that the request needs, separated by spaces.
    pub(super) scope: Option<String>,
    /// The code of the reason why a request was refused.
    error: Option<String>,
}

impl Challenge {
    /// Reads the first `Bearer` challenge of the headers; an empty one if there is none.
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let texts = headers.get_all(WWW_AUTHENTICATE).into_iter();
        let texts = texts.filter_map(|value| value.to_str().ok());
        let mut readable = texts.filter(|text| text.len() <= MAX_BYTES);
        readable.find_map(Self::in_text).unwrap_or_default()
    }

    /// Returns the scopes that the request needs, if it was refused since its token lacks them (RFC 6750, section 3.1).
    pub(super) fn insufficient_scope(&self) -> Option<OAuthScopes> {
        let is_insufficient = self.error.as_deref() == Some("insufficient_scope");
        is_insufficient.then(|| OAuthScopes::read(self.scope.as_deref().unwrap_or_default()))
    }

    fn in_text(text: &str) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut rest = text;
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                return found;
            }
            let end = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
            let word = rest.get(..end)?;
            let after = rest.get(end..)?.trim_start_matches([' ', '\t']);
            if word.is_empty() {
                return found;
            }
            let Some(value) = after.strip_prefix('=') else {
                // A word without a value is a scheme, with which a challenge begins.
                if found.is_some() {
                    return found;
                }
                found = word.eq_ignore_ascii_case("bearer").then(Self::default);
                rest = after;
                continue;
            };
            let (value, after) = read_value(value.trim_start_matches([' ', '\t']))?;
            if let Some(challenge) = &mut found {
                match word.to_ascii_lowercase().as_str() {
                    "resource_metadata" => challenge.resource_metadata = Some(value),
                    "scope" => challenge.scope = Some(value),
                    "error" => challenge.error = Some(value),
                    _ => {}
                }
            }
            rest = after;
        }
    }
}

/// Reads a token or a quoted text, and returns it with the rest of the header.
fn read_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return Some((text.get(..end)?.to_owned(), text.get(end..)?));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, quoted.get(at + 1..)?)),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// Returns whether a character may be part of a token (RFC 9110, section 5.6.2).
fn is_token(character: char) -> bool {
    character.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(character)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn read(texts: &[&'static str]) -> [Option<String>; 2] {
        let mut headers = HeaderMap::new();
        for text in texts {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(text));
        }
        let challenge = Challenge::read(&headers);
        [challenge.resource_metadata, challenge.scope]
    }

    /// Reads the scopes that a request lacks.
    fn lacking(text: &'static str) -> Option<String> {
        let headers = HeaderMap::from_iter([(WWW_AUTHENTICATE, HeaderValue::from_static(text))]);
        let needed = Challenge::read(&headers).insufficient_scope();
        needed.map(|needed| needed.parameter())
    }

    fn is(metadata: Option<&str>, scope: Option<&str>) -> [Option<String>; 2] {
        [metadata.map(str::to_owned), scope.map(str::to_owned)]
    }

    #[test]
    fn a_bearer_challenge_names_the_metadata_and_the_scopes() {
        let place = Some("https://a.test/.well-known/x");
        for text in [
            "Bearer resource_metadata=\"https://a.test/.well-known/x\", scope=\"a b\"",
            "bearer realm=\"x, y\",scope=\"a b\" , Resource_Metadata = \"https://a.test/.well-known/x\"",
            "Basic realm=\"x\", Bearer scope=\"a b\", resource_metadata=\"https://a.test/.well-known/x\"",
            "Bearer resource_metadata=\"https://a.test/.well-known/x\", scope=\"a b\", Basic scope=\"other\"",
        ] {
            assert_eq!(read(&[text]), is(place, Some("a b")), "{text}");
        }
        assert_eq!(read(&["Basic realm=x", "Bearer scope=a"]), is(None, Some("a")));
        assert_eq!(read(&["Bearer scope=\"a\\\"b\""]), is(None, Some("a\"b")));
    }

    #[test]
    fn what_is_no_bearer_challenge_names_nothing() {
        for text in [
            "",
            "Basic scope=\"a\"",
            "Bearer",
            "Bearer scope=\"open",
            "=, =",
            "Bearer ,,,",
            "\"Bearer\" scope=a",
        ] {
            assert_eq!(read(&[text]), is(None, None), "{text}");
        }
    }

    #[test]
    fn a_refusal_for_lack_of_scopes_names_them() {
        for text in [
            "Bearer error=\"insufficient_scope\", scope=\"files:read files:write\"",
            "bearer Error=insufficient_scope, resource_metadata=\"https://a.test/x\", SCOPE=\"files:read  files:write\"",
            "Basic realm=\"x\", Bearer scope=\"files:read files:write files:read\", error=\"insufficient_scope\"",
            "Bearer error=\"insufficient_scope\", error_description=\"scope=\\\"x\\\", more\", scope=\"files:read files:write\"",
            "Bearer error=\"insufficient_scope\", scope=\"files:read a\\\"b files:write c\\\\d\"",
        ] {
            assert_eq!(lacking(text).as_deref(), Some("files:read files:write"), "{text}");
        }
        assert_eq!(lacking("Bearer error=insufficient_scope").as_deref(), Some(""));
    }

    #[test]
    fn a_refusal_for_another_reason_lacks_no_scopes() {
        for text in [
            "",
            "Bearer",
            "Bearer scope=\"files:write\"",
            "Bearer error=\"invalid_token\", scope=\"files:write\"",
            "Bearer error=\"INSUFFICIENT_SCOPE\", scope=\"files:write\"",
            "Basic error=\"insufficient_scope\", scope=\"files:write\"",
            "Bearer error=\"insufficient_scope\", scope=\"files:write",
        ] {
            assert_eq!(lacking(text), None, "{text}");
        }
    }

    #[test]
    fn the_scopes_of_a_refusal_are_bounded() {
        let many: Vec<String> = (0..500).map(|at| format!("s{at}")).collect();
        let text = format!("Bearer error=\"insufficient_scope\", scope=\"{}\"", many.join(" "));
        let header = HeaderValue::from_str(&text).expect("a header");
        let headers = HeaderMap::from_iter([(WWW_AUTHENTICATE, header)]);
        let needed = Challenge::read(&headers).insufficient_scope().expect("scopes");
        assert_eq!(needed.parameter().split(' ').count(), 32);
    }
}
