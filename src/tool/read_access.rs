//! The tokens with which tools read what they may of the run that calls them.
//!
//! A token is issued when a call begins that may read something, goes out with its request and nowhere else, and ends
//! with the call.

use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::call_tokens::{CallTokens, IssuedCallToken};
use super::scope::Scope;
use super::store::placeholder;
use crate::definition::ReadAccess;
use crate::domain::call_token::{CALL_PATH, CallBinding};
use crate::domain::item::template::NamespaceTemplate;
use crate::domain::machine::Failure;

/// The time that a token lives longer than the time-out of its tool, if nobody ends it before.
const TOKEN_GRACE: Duration = Duration::from_secs(30);
/// The text in the place of a token that a tool sends back.
const MASK: &[u8] = b"***";

/// The token of a call that is being made. It ends when this is dropped, at the latest.
pub(super) struct CallToken {
    issued: IssuedCallToken,
    tokens: Arc<dyn CallTokens>,
    is_ended: bool,
}

impl CallToken {
    /// Issues the token of the current call of a tool that takes `timeout` at most; none if the tool may read nothing.
    ///
    /// # Errors
    /// When the context of the run has no value for a placeholder, or the token cannot be stored.
    pub(super) async fn issue(
        scope: &Scope,
        tool: &str,
        access: &ReadAccess,
        timeout: Duration,
    ) -> Result<Option<Self>, Failure> {
        let Some(task) = scope.task.filter(|_| !access.is_empty()) else {
            return Ok(None);
        };
        let call = CallBinding {
            task,
            ownership: scope.ownership.clone(),
            thread: scope.thread,
            run: scope.run,
            child: scope.subagent,
            tool: tool.to_owned(),
            access: ReadAccess {
                store: filled(scope, tool, &access.store)?,
                ..access.clone()
            },
        };
        Ok(Some(Self {
            issued: scope.tokens.issue(call, timeout.saturating_add(TOKEN_GRACE)).await?,
            tokens: Arc::clone(&scope.tokens),
            is_ended: false,
        }))
    }

    /// Returns the part of the request that the tool reads with.
    pub(super) fn for_tool(&self) -> Value {
        json!({
            "path": CALL_PATH,
            "token": self.issued.text.expose_secret(),
            "expires_at": self.issued.expires_at.to_string(),
        })
    }

    /// Ends the token, since the call is complete.
    pub(super) async fn end(mut self) {
        self.is_ended = true;
        self.tokens.end(self.issued.digest).await;
    }

    /// Replaces the token in what the tool has answered, so that nobody else learns it.
    pub(super) fn hide_in(&self, answer: Vec<u8>) -> Vec<u8> {
        let token = self.issued.text.expose_secret().as_bytes();
        let mut hidden = Vec::with_capacity(answer.len());
        let mut rest = answer.as_slice();
        while let Some(at) = rest.windows(token.len()).position(|part| part == token) {
            hidden.extend_from_slice(&rest[..at]);
            hidden.extend_from_slice(MASK);
            rest = &rest[at + token.len()..];
        }
        if rest.len() == answer.len() {
            return answer;
        }
        hidden.extend_from_slice(rest);
        hidden
    }

    /// Does the same in a JSON value.
    pub(super) fn hide_in_value(&self, value: Value) -> Value {
        let text = self.hide_in(value.to_string().into_bytes());
        // A token has no characters that change the form of JSON, and neither has what is put in its place.
        serde_json::from_slice(&text).unwrap_or(Value::Null)
    }

    /// Does the same in the text of a failure.
    pub(super) fn hide_in_failure(&self, failure: Failure) -> Failure {
        let message = self.hide_in(failure.message.into_bytes());
        Failure {
            message: String::from_utf8_lossy(&message).into_owned(),
            ..failure
        }
    }
}

impl Drop for CallToken {
    fn drop(&mut self) {
        if !self.is_ended {
            self.tokens.end_soon(self.issued.digest);
        }
    }
}

/// Returns the declared namespaces, with the values of the run in place of their placeholders.
fn filled(scope: &Scope, tool: &str, declared: &[Vec<String>]) -> Result<Vec<Vec<String>>, Failure> {
    let fill = |labels: &Vec<String>| {
        // Labels that are no template were refused when the definition was read.
        let template = NamespaceTemplate::read(labels).map_err(|_| "its namespaces are invalid".to_owned())?;
        let namespace = template.fill(|name| placeholder(scope, name));
        let namespace = namespace.map_err(|unfilled| unfilled.to_string())?;
        Ok(namespace.labels().to_vec())
    };
    let filled: Result<_, String> = declared.iter().map(fill).collect();
    filled.map_err(|why| {
        let text = format!("the `read_access` of the tool `{tool}` cannot be granted: {why}");
        Failure::new("ReadAccessError", text)
    })
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::domain::api_key::SecretDigest;
    use crate::domain::time::Timestamp;
    use crate::tool::call_tokens::NoCallTokens;

    fn token(text: &str) -> CallToken {
        CallToken {
            issued: IssuedCallToken {
                text: SecretString::from(text.to_owned()),
                digest: SecretDigest::of(text),
                expires_at: Timestamp(0),
            },
            tokens: Arc::new(NoCallTokens),
            is_ended: false,
        }
    }

    #[test]
    fn a_token_is_hidden_wherever_it_is_in_an_answer() {
        let token = token("adjc_1");
        for (answer, hidden) in [
            ("", ""),
            ("nothing", "nothing"),
            ("adjc_1", "***"),
            ("a adjc_1adjc_1 b", "a ****** b"),
            ("adjc_adjc_1 adjc_", "adjc_*** adjc_"),
        ] {
            assert_eq!(token.hide_in(answer.into()), hidden.as_bytes(), "{answer}");
        }
    }

    #[test]
    fn namespaces_are_filled_from_the_context_of_the_run_or_refused() {
        let scope = Scope::sample(Timestamp(0));
        let declared = |label: &str| vec![vec!["memories".to_owned(), label.to_owned()]];
        let named = filled(&scope, "find", &declared("{user}")).expect("there is a user");
        assert_eq!(named, [["memories", "u1"]]);
        let refused = filled(&scope, "find", &declared("{team}")).expect_err("there is no team");
        assert_eq!(
            refused.message,
            "the `read_access` of the tool `find` cannot be granted: the context of the run has no `team`"
        );
    }
}
